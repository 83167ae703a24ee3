"""Figures that all gateway processes of a server have in common: what a tenant has used, what a model's queue
holds.

They lie in one piece of shared memory, in records of fixed size that are found by a hash of their name. Each
record has figures of all processes, and a few for each process, which it alone changes: so what a process
that was killed held can be given back. Changes are made under a POSIX lock of the record's byte (fcntl(2)),
which the system takes from a process that dies; they are ordered so that a death between two of them costs
the account of one request.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import tempfile
from collections.abc import Generator, Iterable, MutableSequence
from contextlib import AbstractContextManager, nullcontext

log = logging.getLogger(__name__)
COMMON, OWN = 4, 4
"""Figures of all processes together, and of each one, in a record."""
KEY_BYTES = 16
RECORDS = 4096
FIGURE_BYTES = 8
NOBODY = nullcontext()


class LocalRecord:
    """Figures of one name in a server with one process, 0 at first. common: [COMMON]; own: [OWN], of this
    process."""

    __slots__ = ("common", "own")

    def __init__(self) -> None:
        self.common: MutableSequence[float] = [0.0] * COMMON
        self.own: MutableSequence[float] = [0.0] * OWN

    def turn(self) -> AbstractContextManager[None]:
        """While it lasts, no other process has a turn."""
        return NOBODY

    def total(self, figure: int) -> float:
        """The sum of the processes' own."""
        return self.own[figure]


class LocalCounts:
    def __init__(self) -> None:
        self._records: dict[str, LocalRecord] = {}

    def record(self, name: str) -> CountRecord:
        return self._records.setdefault(name, LocalRecord())


class SharedRecord:
    """The same in shared memory, as one process sees it."""

    __slots__ = ("_at", "_counts", "_figures", "common", "own")

    def __init__(self, counts: SharedCounts, at: int, figures: memoryview[float]) -> None:
        self._counts, self._at, self._figures = counts, at, figures
        self.common: MutableSequence[float] = figures[:COMMON]  # pyright: ignore[reportAttributeAccessIssue]
        own = COMMON + OWN * counts.index
        self.own: MutableSequence[float] = figures[own : own + OWN]  # pyright: ignore[reportAttributeAccessIssue]

    def turn(self) -> AbstractContextManager[None]:
        return self._counts.locked(self._at)

    def total(self, figure: int) -> float:
        return sum(self._figures[COMMON + figure :: OWN])

    def give_back(self, index: int) -> None:
        """The holdings of a process that is no more. The second common pair is what its second figure was
        taken from."""
        figures, own = self._figures, COMMON + OWN * index
        figures[2] = max(0.0, figures[2] - figures[own + 1])
        for figure in range(own, own + OWN):
            figures[figure] = 0.0


CountRecord = LocalRecord | SharedRecord


class SharedCounts:
    """Owns the memory and its descriptor, of which a process must not open another one: closing that would
    end its locks."""

    def __init__(self, fd: int, index: int, places: int, records: int = RECORDS) -> None:
        """index: the place of this process among `places`."""
        self.fd, self.index = fd, index
        self._stride = KEY_BYTES + FIGURE_BYTES * (COMMON + OWN * places)
        self._records = records
        self._memory = mmap.mmap(fd, self._stride * (records + 1))
        self._known: dict[str, CountRecord] = {}

    @classmethod
    def make(cls, places: int, records: int = RECORDS) -> SharedCounts:
        """New memory, of the process at place 0."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("firelane-counts")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        stride = KEY_BYTES + FIGURE_BYTES * (COMMON + OWN * places)
        os.ftruncate(fd, stride * (records + 1))
        return cls(fd, 0, places, records)

    def close(self) -> None:
        """No record may be used any more."""
        self._known.clear()
        os.close(self.fd)

    @contextlib.contextmanager
    def locked(self, at: int) -> Generator[None]:
        fcntl.lockf(self.fd, fcntl.LOCK_EX, 1, at)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, at)

    def record(self, name: str) -> CountRecord:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._place(name)
        return found

    def give_back(self, index: int) -> None:
        """The holdings of the process at this place, which has ended."""
        for number in self._used():
            record = self._at(number)
            with record.turn():
                record.give_back(index)

    def _place(self, name: str) -> CountRecord:
        """Probes from where the key's hash says; the first free place is taken."""
        key = hashlib.blake2b(name.encode(), digest_size=KEY_BYTES).digest()
        first = int.from_bytes(key, "little") % self._records
        with self.locked(0):
            for step in range(self._records):
                number = (first + step) % self._records
                begin = self._begin(number)
                held = self._memory[begin : begin + KEY_BYTES]
                if held == key:
                    return self._at(number)
                if not any(held):
                    self._memory[begin : begin + KEY_BYTES] = key
                    return self._at(number)
        log.warning("shared_counts_full records=%d: %s counts in each process by itself", self._records, name)
        return LocalRecord()

    def _used(self) -> Iterable[int]:
        for number in range(self._records):
            begin = self._begin(number)
            if any(self._memory[begin : begin + KEY_BYTES]):
                yield number

    def _begin(self, number: int) -> int:
        """The place of a record. The first place is that of the lock on all."""
        return self._stride * (number + 1)

    def _at(self, number: int) -> SharedRecord:
        begin = self._begin(number)
        figures = memoryview(self._memory)[begin + KEY_BYTES : begin + self._stride].cast("d")
        return SharedRecord(self, begin, figures)


Counts = LocalCounts | SharedCounts
