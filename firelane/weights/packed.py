"""The packed file: weights as the kernels read them, then a manifest, then a trailer that makes it
trustworthy.

    payload    as the plan places it manifest   JSON: key, plan hash, fingerprint, payload bytes trailer    64
    bytes: magic [16], manifest length [8, little-endian], zeros [8], SHA-256 of the manifest [32]

The trailer is written last and the file is renamed into place after that, so a file under its final name is
whole; size, magic, hash and manifest are checked all the same each time it is opened.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.weights.formats import FORMAT_VERSION
from firelane.weights.plan import PackedWeight, plan_hash, total_bytes

MAGIC = b"firelane-packed\0"
TRAILER_BYTES = 64
MAX_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a packed file was made from. Two files with the same manifest hold the same bytes."""

    fingerprint: str
    plan: str
    payload_bytes: int
    format_version: int = FORMAT_VERSION

    @classmethod
    def of(cls, placed: tuple[PackedWeight, ...], fingerprint: str) -> Manifest:
        return cls(fingerprint=fingerprint, plan=plan_hash(placed), payload_bytes=total_bytes(placed))

    @property
    def key(self) -> str:
        """The file's name, without a suffix."""
        return hashlib.sha256(self.encode()).hexdigest()[:32]

    @property
    def file_bytes(self) -> int:
        return self.payload_bytes + len(self.footer())

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    def footer(self) -> bytes:
        text = self.encode()
        return text + MAGIC + len(text).to_bytes(16, "little") + hashlib.sha256(text).digest()


class PackedWeights:
    """Mapped packed weights. Addresses are valid until close(); arrays keep the mapping alive too."""

    __slots__ = ("_bytes", "_map", "_placed", "path")

    def __init__(self, path: Path, placed: tuple[PackedWeight, ...], data: mmap.mmap) -> None:
        self.path = path
        self._placed = {p.weight.name: p for p in placed}
        self._map = data
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(data, np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights, padding included."""
        return sum(p.nbytes for p in self._placed.values())

    def address(self, name: str) -> int:
        """Where the weight lies in this process's memory; aligned as the plan says."""
        return self._payload().ctypes.data + self._placed[name].offset

    def array(self, name: str) -> NDArray[Any]:
        """The packed array, read-only: shape and dtype as in the plan."""
        p = self._placed[name]
        data = self._payload()[p.offset : p.offset + p.nbytes]
        return data.view(p.format.dtype).reshape(p.shape)

    def placed(self, name: str) -> PackedWeight:
        return self._placed[name]

    def close(self) -> None:
        """Unmap, unless an array that was handed out still needs the mapping. Idempotent."""
        self._bytes = None
        try:
            self._map.close()
        except BufferError:
            return

    def __repr__(self) -> str:
        return f"PackedWeights({str(self.path)!r}, {self.nbytes / 1e9:.2f} GB, closed={self._bytes is None})"

    def _payload(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            raise CheckpointError(f"{self.path}: packed weights are closed")
        return self._bytes


def open_packed(path: Path, placed: tuple[PackedWeight, ...], manifest: Manifest) -> PackedWeights | None:
    """The weights in `path`, or None when there is no such file, it cannot be read, or it is not exactly what
    it should be.
    """
    try:
        with path.open("rb") as file:
            if not _is_whole(file, manifest):
                return None
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None
    data.madvise(mmap.MADV_WILLNEED)
    return PackedWeights(path, placed, data)


def _is_whole(file: Any, manifest: Manifest) -> bool:
    if file.seek(0, 2) != manifest.file_bytes:
        return False
    file.seek(manifest.payload_bytes)
    return bool(file.read() == manifest.footer())
