"""Bytes of a file of weights, wherever it lies: on a drive (LocalBytes), or in an object store
(weights/storage/remote.py)."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from firelane.errors import CheckpointError
from firelane.storage import open_regular
from firelane.weights.storage.fingerprint import FileStamp
from firelane.weights.storage.reader import Bytes, DriveReader, ReadBuffer, read_ranges

LEAST_BYTES = 8
DIRECT_BYTES = 1 << 20  # less is read through the page cache


class FileBytes(Protocol):
    """Reads are safe from many threads, and raise CheckpointError or StoreError."""

    @property
    def nbytes(self) -> int: ...
    @property
    def stamp(self) -> FileStamp: ...

    @property
    def direct(self) -> bool:
        """Whether whoever reads waits for a drive or a store: the file is not in the page cache."""
        ...

    def read(self, offset: int, nbytes: int, buffer: ReadBuffer) -> Bytes:
        """The bytes at `offset`, in `buffer`."""
        ...

    def take(self, offset: int, nbytes: int, *, sparse: bool = False) -> Bytes:
        """The bytes at `offset`, read-only, wherever they are. `sparse`: only a few will be looked at."""
        ...

    def sample(self, ranges: Sequence[tuple[int, int]]) -> bytes:
        """A digest of the bytes begin .. end - 1 of each range, or of what stands for all of them."""
        ...

    def is_unchanged(self) -> bool:
        """Whether the file is what it was when it was opened."""
        ...


class LocalBytes:
    """A mapped file. What it hands out may keep the mapping alive."""

    __slots__ = ("_map", "_path", "_reader", "stamp")

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError."""
        self._path = path
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                if status.st_size < LEAST_BYTES:
                    raise CheckpointError(f"{path}: too short for a safetensors file; download it again")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._reader, self.stamp = DriveReader(path), FileStamp.of(status)
        except OSError as error:
            raise self._unreadable(error) from error

    @property
    def nbytes(self) -> int:
        return len(self._map)

    @property
    def direct(self) -> bool:
        return self._reader.direct

    def read(self, offset: int, nbytes: int, buffer: ReadBuffer) -> Bytes:
        try:
            return self._reader.read(offset, nbytes, buffer)
        except OSError as error:
            raise self._unreadable(error) from error

    def take(self, offset: int, nbytes: int, *, sparse: bool = False) -> Bytes:
        """A view of the mapping, or what is read past the page cache where the file was not in it."""
        if not sparse and self.direct and nbytes >= DIRECT_BYTES:
            data = self.read(offset, nbytes, ReadBuffer(nbytes))
            data.flags.writeable = False
            return data
        if not sparse:
            self._fetch(offset, nbytes)
        return np.frombuffer(memoryview(self._map)[offset : offset + nbytes], np.uint8)

    def sample(self, ranges: Sequence[tuple[int, int]]) -> bytes:
        digest = xxhash.xxh3_128()
        try:
            for piece in read_ranges(self._path, ranges, cached=not self.direct):
                digest.update(piece)
        except OSError as error:
            raise self._unreadable(error) from error
        return digest.digest()

    def is_unchanged(self) -> bool:
        try:
            return FileStamp.of(self._path.stat()) == self.stamp
        except OSError:
            return False

    def _fetch(self, offset: int, size: int) -> None:
        """Ask the system for these bytes in one go: page faults ask for too little at a time where all is
        wanted, and for far too much around it where a little is.
        """
        if size > 0 and hasattr(mmap, "MADV_WILLNEED"):
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, start, offset + size - start)

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self._path}: cannot be read: {error.strerror}")
