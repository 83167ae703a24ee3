"""The packed file: weights as the kernels read them, then a manifest, then a trailer that makes it
trustworthy.

    payload    as layout.py places it
    manifest   JSON: format version, fingerprint of the checkpoint, hash of the plan; of each weight its size,
               and the digest of its bytes (digests.py)
    trailer    64 bytes: magic [16], manifest length [8, little-endian], zeros [8], SHA-256 of the manifest

The trailer is written last, and the file is renamed into place after that; a file with a seal (seal.py) is
whole. Sizes, magic, hash, manifest and panel tables are checked all the same each time it is opened. Digests
are compared while it is served already (check.py): that takes as long as reading all of it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.native.pages import MappedFile
from firelane.storage import UseMark, open_own, open_regular
from firelane.weights.formats import grouped
from firelane.weights.formats.coded import ALIGNMENT_BYTES, decode
from firelane.weights.formats.formats import FORMAT_VERSION
from firelane.weights.packing.layout import PackedLayout, WeightPlace, lay_out, table_bytes
from firelane.weights.packing.plan import PackedWeight, plan_hash
from firelane.weights.storage.digests import PayloadDigests
from firelane.weights.storage.fingerprint import FileStamp

if TYPE_CHECKING:
    from firelane.weights.packing.seal import Seal

MAGIC = b"firelane-packed\0"
TRAILER_BYTES = 64
MAX_MANIFEST_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class PackedIdentity:
    """The identity of a packed file: all that it is made from. Two files of the same identity hold the same
    bytes."""

    fingerprint: str
    plan: str
    format_version: int = FORMAT_VERSION

    @classmethod
    def of(cls, placed: tuple[PackedWeight, ...], fingerprint: str) -> PackedIdentity:
        return cls(fingerprint=fingerprint, plan=plan_hash(placed))

    @property
    def key(self) -> str:
        """The file's name, without a suffix."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]

    def footer(self, sizes: tuple[int, ...], digests: PayloadDigests) -> bytes:
        """All that follows the payload; `sizes` in bytes, in the plan's order."""
        text = json.dumps({**asdict(self), "sizes": sizes, **asdict(digests)}, sort_keys=True).encode()
        return _footer(text)


class PackedWeights:
    """Mapped packed weights. Addresses are valid until close(); arrays keep the mapping alive too."""

    __slots__ = ("_bytes", "_digests", "_places", "_tables", "_used", "file", "path", "seal", "stamp")

    def __init__(
        self,
        path: Path,
        placed: tuple[PackedWeight, ...],
        contents: Contents,
        file: MappedFile,
        stamp: FileStamp,
    ) -> None:
        layout = contents.layout
        self.path, self.stamp, self._used = path, stamp, UseMark(path.with_suffix(".used"))
        self.seal: Seal | None = None
        self.file, self._digests = file, contents.digests
        self._bytes: NDArray[np.uint8] | None = file.array()
        self._places = {p.weight.name: (p, q) for p, q in zip(placed, layout.places, strict=True)}
        self._tables = {
            name: _table(self._bytes, p, place.table)
            for name, (p, place) in self._places.items()
            if place.table is not None
        }

    @property
    def nbytes(self) -> int:
        """Bytes that the weights take in memory, their padding and panel tables included."""
        return sum(self.bytes_of(name) for name in self._places)

    def bytes_of(self, name: str) -> int:
        """Bytes that a weight takes in memory."""
        p, place = self._places[name]
        return place.nbytes + (0 if place.table is None else table_bytes(p))

    def address(self, name: str) -> int:
        """The address of the weight in this process's memory; aligned as layout.py says."""
        return self._payload().ctypes.data + self._place(name).offset

    def array(self, name: str) -> NDArray[Any]:
        """The packed array, read-only: shape as in the plan, dtype that of format.plain. A matrix in a coded
        format is decoded, slowly.
        """
        p, place = self._places[name]
        data = self._payload()[place.offset : place.offset + place.nbytes]
        if p.format.grouping is not None:
            return grouped.decode(data, p.format, p.weight.k)
        if p.format.is_coded:
            return decode(data, self._tables[name], p.format, p.weight.k)
        return data.view(p.format.dtype).reshape(p.shape)

    def panel_table(self, name: str) -> NDArray[np.uint64]:
        """The places where panels of a matrix in a coded format begin, counted from address(name), and the
        end: uint64 [panels + 1], a view of the mapping. KeyError for other weights."""
        return self._tables[name]

    def placed(self, name: str) -> PackedWeight:
        return self._places[name][0]

    def damage(self, stopped: Callable[[], bool] = lambda: False) -> str | None:
        """The name of the first weight whose bytes are not those that were written, or None; all are read
        unless it is `stopped`.
        """
        number = self._digests.first_damaged(self._payload(), stopped)
        return None if number is None else tuple(self._places)[number]

    def sealed(self) -> None:
        """Return when the file counts as packed. Raises CacheError where it will not."""
        if self.seal is not None:
            self.seal.wait()

    def close(self) -> None:
        """Unmap, unless an array that was handed out still needs the mapping. Idempotent."""
        self._bytes = None
        self._tables = {}
        self._used.close()
        self.file.close()

    def __repr__(self) -> str:
        return f"PackedWeights({str(self.path)!r}, {self.nbytes / 1e9:.2f} GB, closed={self._bytes is None})"

    def _place(self, name: str) -> WeightPlace:
        return self._places[name][1]

    def _payload(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            raise CheckpointError(f"{self.path}: packed weights are closed")
        return self._bytes


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of a manifest: where the weights lie, and what digests they had."""

    layout: PackedLayout
    digests: PayloadDigests


def open_packed(
    path: Path, placed: tuple[PackedWeight, ...], identity: PackedIdentity
) -> PackedWeights | None:
    """The weights in `path`, or None when there is no such file, it cannot be read, others may have written
    it, or it is not exactly what it should be, as far as that can be told without reading all of it.
    """
    try:
        with open_own(path) as file:
            contents = _read_contents(file, placed, identity)
            mapped = MappedFile(file.fileno(), os.fstat(file.fileno()).st_size)
            stamp = FileStamp.of(os.fstat(file.fileno()))
    except (OSError, ValueError, RecursionError):
        return None
    if not _tables_are_good(mapped.array(), placed, contents.layout):
        return None
    return PackedWeights(path, placed, contents, mapped, stamp)


def is_intact(path: Path) -> bool:
    """Whether a packed file of whatever identity is what was written, to the last byte; all of it is read."""
    try:
        with open_regular(path) as file:
            footer, length = _read_footer(file)
            digests = PayloadDigests.decode(_manifest(footer[:length]))
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError, RecursionError):
        return False
    whole = len(data) == digests.ends[-1] + len(footer)
    return (
        whole
        and footer == _footer(footer[:length])
        and digests.first_damaged(np.frombuffer(data, np.uint8)) is None
    )


def _read_contents(file: BinaryIO, placed: tuple[PackedWeight, ...], identity: PackedIdentity) -> Contents:
    """ValueError when the file is not of this identity, or damaged."""
    footer, length = _read_footer(file)
    manifest = _manifest(footer[:length])
    sizes, digests = _sizes(manifest), PayloadDigests.decode(manifest)
    layout = lay_out(placed, sizes)
    if footer != identity.footer(sizes, digests) or digests.ends != layout.extent_ends:
        raise ValueError("not the file that was asked for")
    if file.seek(0, 2) != layout.payload_bytes + len(footer):
        raise ValueError("not all of the file")
    return Contents(layout=layout, digests=digests)


def _read_footer(file: BinaryIO) -> tuple[bytes, int]:
    """Manifest and trailer, and the length of the manifest. ValueError where there is none."""
    file_bytes = file.seek(0, 2)
    if file_bytes < TRAILER_BYTES:
        raise ValueError("no trailer")
    file.seek(-TRAILER_BYTES, 2)
    length = int.from_bytes(file.read(TRAILER_BYTES)[16:24], "little")
    if length > min(MAX_MANIFEST_BYTES, file_bytes - TRAILER_BYTES):
        raise ValueError("no manifest")
    file.seek(-TRAILER_BYTES - length, 2)
    return file.read(), length


def _footer(manifest: bytes) -> bytes:
    return manifest + MAGIC + len(manifest).to_bytes(16, "little") + hashlib.sha256(manifest).digest()


def _manifest(text: bytes) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no manifest")
    return cast("dict[str, Any]", found)


def _sizes(manifest: dict[str, Any]) -> tuple[int, ...]:
    sizes = manifest.get("sizes")
    if not isinstance(sizes, list):
        raise ValueError("no sizes")
    sizes = cast("list[Any]", sizes)
    if not all(type(n) is int for n in sizes):
        raise ValueError("a size is no integer")
    return tuple(sizes)


def _table(data: NDArray[np.uint8], p: PackedWeight, at: int) -> NDArray[np.uint64]:
    return data[at : at + table_bytes(p)].view(np.uint64)


def _tables_are_good(data: NDArray[np.uint8], placed: tuple[PackedWeight, ...], layout: PackedLayout) -> bool:
    """Whether every panel begins and ends where one can."""
    for p, place in zip(placed, layout.places, strict=True):
        if place.table is None:
            continue
        table = _table(data, p, place.table)
        least, most = p.panel_bounds
        if table[0] != 0 or table[-1] != place.nbytes or (table % ALIGNMENT_BYTES).any():
            return False
        sizes = np.diff(table.astype(np.int64))
        if (table > place.nbytes).any() or sizes.min() < least or sizes.max() > most:
            return False
    return True
