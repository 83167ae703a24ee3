"""Weights that lie in an object store: an index of them in a model's directory, beside its small files, and
the bytes behind it.

The index is written last, so a directory that has one is whole. Of each file the header lies beside it; the
tensors are read from the store when they are wanted, from the directory itself where the file was pulled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from firelane.errors import CheckpointError
from firelane.storage import read_regular
from firelane.stores.address import parse
from firelane.stores.client import ObjectStore
from firelane.stores.objects import StoredObject
from firelane.weights.storage import checked_json
from firelane.weights.storage.file_bytes import FileBytes, LocalBytes
from firelane.weights.storage.fingerprint import FileStamp
from firelane.weights.storage.reader import Bytes, ReadBuffer

NAME = ".store.json"
VERSION = 1
PART_BYTES = 8 << 20
"""Bytes of one request; larger ones hold more memory and are no faster."""
READERS = 16


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """header: digest of the file's first bytes, which lie beside the index."""

    stored: StoredObject
    header: str


class RemoteIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """url: of the directory in the store. small: other objects, which lie beside the index. files: of
    weights."""

    version: int
    url: str
    allow_http: bool
    small: list[StoredObject]
    files: list[RemoteFile]


def read_index(directory: Path) -> RemoteIndex | None:
    """None where there is no valid one of this version."""
    index = checked_json.read(directory / NAME, RemoteIndex)
    return index if index is not None and index.version == VERSION else None


def header_path(directory: Path, name: str) -> Path:
    return directory / f".{name}.header"


def header_digest(header: bytes) -> str:
    return hashlib.sha256(header).hexdigest()


def remote_files(directory: Path, store: ObjectStore | None = None) -> dict[str, FileBytes]:
    """By name the weight files of a directory that has an index; {} for others. Raises CheckpointError."""
    if not (directory / NAME).is_file():
        return {}
    index = read_index(directory)
    if index is None:
        raise CheckpointError(f"{directory}: its index is damaged or of another version: start again")
    store = store or ObjectStore(parse(index.url), allow_http=index.allow_http)
    return {file.stored.name: _opened(directory, file, store) for file in index.files}


def _opened(directory: Path, file: RemoteFile, store: ObjectStore) -> FileBytes:
    path = directory / file.stored.name
    if path.is_file():
        return PulledBytes(path, file.stored)
    try:
        header = read_regular(header_path(directory, file.stored.name), 128 << 20)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be read: {error.strerror}") from error
    if header_digest(header) != file.header:
        raise CheckpointError(f"{header_path(directory, file.stored.name)}: is damaged: remove {directory}")
    return RemoteBytes(store, file.stored, header)


def stamp_of(stored: StoredObject) -> FileStamp:
    """Stands for a version of an object: no other one has it."""
    version = hashlib.sha256(f"{stored.etag}:{stored.modified_s}".encode()).digest()
    inode = int.from_bytes(version[:7], "little")
    return FileStamp(inode, stored.nbytes, stored.modified_s * 1_000_000_000, 1)


class RemoteBytes:
    """One object, read in parts. header: its first bytes, which are not asked for again."""

    __slots__ = ("_header", "_store", "_stored", "stamp")

    def __init__(self, store: ObjectStore, stored: StoredObject, header: bytes = b"") -> None:
        self._store, self._stored, self.stamp = store, stored, stamp_of(stored)
        self._header = np.frombuffer(header, np.uint8)

    @property
    def nbytes(self) -> int:
        return self._stored.nbytes

    @property
    def direct(self) -> bool:
        return True

    def read(self, offset: int, nbytes: int, buffer: ReadBuffer) -> Bytes:
        out = buffer.pages[:nbytes]
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: Bytes) -> None:
        """Fill `out`, in parallel where that takes several requests. Raises StoreError."""
        begins = range(0, len(out), PART_BYTES)
        if len(begins) <= 1:
            self._read_part(offset, out)
            return
        with ThreadPoolExecutor(min(READERS, len(begins)), thread_name_prefix="store") as pool:
            parts = [(offset + begin, out[begin : begin + PART_BYTES]) for begin in begins]
            for done in [pool.submit(self._read_part, *part) for part in parts]:
                done.result()

    def take(self, offset: int, nbytes: int, *, sparse: bool = False) -> Bytes:  # noqa: ARG002
        if offset + nbytes <= len(self._header):
            return self._header[offset : offset + nbytes]
        out = np.empty(nbytes, np.uint8)
        self.read_into(offset, out)
        out.flags.writeable = False
        return out

    def sample(self, ranges: Sequence[tuple[int, int]]) -> bytes:  # noqa: ARG002 - the version says all
        version = f"{self._stored.etag}:{self._stored.nbytes}"
        return hashlib.sha256(version.encode()).digest()

    def is_unchanged(self) -> bool:
        """True: each read was of the version that was asked for."""
        return True

    def _read_part(self, offset: int, out: Bytes) -> None:
        if len(out):
            self._store.read_into(self._stored, offset, out.data)


class PulledBytes(LocalBytes):
    """An object that was pulled into the directory. It is known by the version that it has in the store, so
    what is made of it serves both."""

    __slots__ = ("_own", "_stored")

    def __init__(self, path: Path, stored: StoredObject) -> None:
        """Raises CheckpointError."""
        super().__init__(path)
        if self.nbytes != stored.nbytes:
            raise CheckpointError(f"{path}: has {self.nbytes} of {stored.nbytes} bytes: remove it")
        self._own, self.stamp, self._stored = self.stamp, stamp_of(stored), stored

    def sample(self, ranges: Sequence[tuple[int, int]]) -> bytes:  # noqa: ARG002 - the version says all
        version = f"{self._stored.etag}:{self._stored.nbytes}"
        return hashlib.sha256(version.encode()).digest()

    def is_unchanged(self) -> bool:
        try:
            return FileStamp.of(self._path.stat()) == self._own
        except OSError:
            return False
