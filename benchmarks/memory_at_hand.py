"""Memory that is at hand while something is measured, on a virtual machine whose host takes free memory back.

Such a machine (free page reporting) waits for its host longer than for anything that is measured where much
memory is had at once; one that owns its memory does not."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from types import TracebackType

import numpy as np

LEAD_BYTES = 256 << 20
"""Freed before it is used."""
HUGE_PAGE_BYTES = 2 << 20
POLL_S = 0.005


class MemoryAtHand:
    """Holds memory that it frees as fast as the machine uses some, a little before: what was freed last is
    given out first. The rest is freed in the end."""

    def __init__(self, nbytes: int) -> None:
        """nbytes: the most that will be used. OSError where the machine has less. freed: bytes so far."""
        self._size = -(-(nbytes + LEAD_BYTES) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self._memory = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE)
        self.freed = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemoryAtHand:
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(self._memory, np.uint8)[:: mmap.PAGESIZE] = 1
        self._free_before = free_bytes()
        self._follow()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._memory.close()

    def _run(self) -> None:
        while not self._end.wait(POLL_S):
            self._follow()

    def _follow(self) -> None:
        used = self._free_before + self.freed - free_bytes()
        wanted = min(self._size, max(used, 0) + LEAD_BYTES) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if wanted > self.freed:
            self._memory.madvise(mmap.MADV_DONTNEED, self.freed, wanted - self.freed)
            self.freed = wanted


def free_bytes() -> int:
    """Return the bytes of the machine's memory that nothing uses."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemFree:"))
