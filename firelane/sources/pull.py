"""Pulling: whole objects into files, in parallel ranges, that go on where a killed process left them.

    .NAME.partial  the file's bytes, as far as they are there
    .NAME.ranges   a head that names the object's version, then a record for each range that is there: its
                   number and the digest of its bytes

A file takes its name when all ranges are there. Its ranges stay beside it: what lies on the drive can be
compared with what came.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

import numpy as np
import xxhash
from numpy.typing import NDArray

from firelane.storage import sync_directory
from firelane.stores.client import ObjectStore
from firelane.stores.objects import StoredObject
from firelane.weights.storage.remote import PART_BYTES, READERS

RECORD = np.dtype([("number", "<u4"), ("digest", "<u8")])
HEAD_BYTES = 32


class PulledFile:
    """One file that is pulled. The caller holds a lock against others that pull it."""

    def __init__(self, path: Path, stored: StoredObject) -> None:
        self.path, self._stored = path, stored
        self.partial = path.with_name(f".{path.name}.partial")
        self._ranges = path.with_name(f".{path.name}.ranges")
        version = f"1 {PART_BYTES} {stored.nbytes} {stored.etag or stored.modified_s}"
        self._head = hashlib.sha256(version.encode()).digest()
        self._lock = Lock()
        self._buffers: SimpleQueue[NDArray[np.uint8]] = SimpleQueue()

    @property
    def count(self) -> int:
        """Ranges of the whole file."""
        return -(-self._stored.nbytes // PART_BYTES)

    def is_whole(self) -> bool:
        """Whether it is there, in its size; pull() looks at its bytes."""
        try:
            return self.path.stat().st_size == self._stored.nbytes
        except OSError:
            return False

    def pull(self, store: ObjectStore, on_bytes: Callable[[int], None] = lambda _: None) -> int:
        """Fetch what is not there, or is not what came; returns how many bytes. on_bytes: of each range that
        is there, fetched or found. Raises StoreError, OSError."""
        there = self.path if self.path.is_file() else self.partial
        good = self._good(there)
        missing = [number for number in range(self.count) if number not in good]
        for number in good:
            on_bytes(self._length(number))
        if not missing and there == self.path:
            return 0
        if there == self.path:
            self.path.rename(self.partial)
        self._write_records(good)
        self._fetch(store, missing, on_bytes)
        self.partial.rename(self.path)
        sync_directory(self.path.parent)
        return sum(self._length(number) for number in missing)

    def remove(self) -> None:
        for path in (self.path, self.partial, self._ranges):
            path.unlink(missing_ok=True)

    def _length(self, number: int) -> int:
        return min(PART_BYTES, self._stored.nbytes - number * PART_BYTES)

    def _good(self, path: Path) -> dict[int, int]:
        """The digests of ranges that lie in the file as they came, by their numbers."""
        known = self._records()
        if not known:
            return {}
        try:
            with path.open("rb", buffering=0) as file:
                return {n: digest for n, digest in known.items() if self._digest(file.fileno(), n) == digest}
        except OSError:
            return {}

    def _records(self) -> dict[int, int]:
        """The digests of ranges of this version, by their numbers."""
        try:
            data = self._ranges.read_bytes()
        except OSError:
            return {}
        if data[:HEAD_BYTES] != self._head:
            return {}
        whole = (len(data) - HEAD_BYTES) // RECORD.itemsize * RECORD.itemsize  # the last may be cut
        records = np.frombuffer(data[HEAD_BYTES : HEAD_BYTES + whole], RECORD)
        return {int(r["number"]): int(r["digest"]) for r in records if r["number"] < self.count}

    def _digest(self, fd: int, number: int) -> int:
        return xxhash.xxh3_64_intdigest(os.pread(fd, self._length(number), number * PART_BYTES))

    def _write_records(self, good: dict[int, int]) -> None:
        records = np.array(list(good.items()), RECORD) if good else np.empty(0, RECORD)
        self._ranges.write_bytes(self._head + records.tobytes())

    def _fetch(self, store: ObjectStore, missing: list[int], on_bytes: Callable[[int], None]) -> None:
        fd = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        records = os.open(self._ranges, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, self._stored.nbytes)
            if self._stored.nbytes and hasattr(os, "posix_fallocate"):  # a full disk is better met now
                os.posix_fallocate(fd, 0, self._stored.nbytes)
            self._buffers = SimpleQueue()
            for _ in range(READERS):
                self._buffers.put(np.empty(PART_BYTES, np.uint8))
            with ThreadPoolExecutor(READERS, thread_name_prefix="pull") as pool:
                futures = [pool.submit(self._fetch_range, store, n, fd, records) for n in missing]
                try:
                    for future in as_completed(futures):
                        on_bytes(future.result())
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
            os.fsync(fd)
        finally:
            os.close(records)
            os.close(fd)

    def _fetch_range(self, store: ObjectStore, number: int, fd: int, records: int) -> int:
        begin = number * PART_BYTES
        buffer = self._buffers.get()
        try:
            data = buffer[: self._length(number)].data
            store.read_into(self._stored, begin, data)
            _write_all(fd, data, begin)
            digest = xxhash.xxh3_64_intdigest(data)
        finally:
            self._buffers.put(buffer)
        record = np.array([(number, digest)], RECORD).tobytes()
        with self._lock:
            if os.write(records, record) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
