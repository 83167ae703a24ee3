"""Pages of a mapped file, small ones or huge ones of 2 MiB: a stream of reads through small pages waits for
page tables as well as for memory.

What of this only Linux has stays in this module; elsewhere a file is mapped as the system does it. Sources:
mmap(2), madvise(2), mremap(2), proc_pid_smaps(5), Documentation/admin-guide/mm/transhuge.rst of Linux.
"""

from __future__ import annotations

import ctypes as ct
import functools
import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE_BYTES = 2 << 20
SMAPS = Path("/proc/self/smaps")
TRANSPARENT_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
_HUGE_FIELDS = ("AnonHugePages:", "FilePmdMapped:", "ShmemPmdMapped:")
_MAP_FIXED = 0x10
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
_MADV_REMOVE, _MADV_COLD, _MADV_POPULATE_READ, _MADV_COLLAPSE = 9, 20, 22, 25
_MAP_FAILED = ct.c_void_p(-1).value


class MappedFile:
    """The first `nbytes` (1 at least) of a file in memory, read-only. Its address is one that huge pages can
    have, and stays the same whatever pages lie there. OSError, ValueError."""

    __slots__ = ("_fd", "_has_copies", "_memory", "_start", "nbytes")

    def __init__(self, fd: int, nbytes: int) -> None:
        self.nbytes, self._has_copies, self._fd = nbytes, False, -1
        self._fd = os.dup(fd)
        if sys.platform != "linux":
            self._memory, self._start = mmap.mmap(fd, nbytes, access=mmap.ACCESS_READ), 0
            return
        self._memory, self._start = _room(nbytes, mmap.PROT_READ)
        self._map()

    def _map(self) -> None:
        """The file's own pages, in the place of what is mapped there."""
        at, flags = self.array().ctypes.data, mmap.MAP_SHARED | _MAP_FIXED
        if _libc().mmap(at, self.nbytes, mmap.PROT_READ, flags, self._fd, 0) == _MAP_FAILED:
            raise _error()
        self._has_copies = False
        with suppress(OSError):  # a system without huge pages
            self._advise(mmap.MADV_HUGEPAGE, 0, self.nbytes)

    def let_go(self) -> bool:
        """Give up private copies, and tell the system to take these pages first when it needs memory. Who
        reads there has them again. Returns whether there were copies. OSError."""
        if sys.platform != "linux":
            return False
        had_copies = self._has_copies
        if had_copies:
            self._map()
        with suppress(OSError):  # an old kernel
            self._advise(_MADV_COLD, 0, self.nbytes)
        return had_copies

    def array(self) -> NDArray[np.uint8]:
        """All bytes. The array keeps the mapping alive."""
        return np.frombuffer(self._memory, np.uint8)[self._start : self._start + self.nbytes]

    def close(self) -> None:
        """Unmap, unless an array still needs the mapping. Idempotent."""
        with suppress(BufferError):
            self._memory.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = _close_file

    def huge_share(self, start: int, nbytes: int) -> float:
        """The share that huge pages hold of what they could hold; 0 where nobody knows. A part counts if it
        is mapped on its own."""
        most = nbytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        begin = self.array().ctypes.data + start
        return huge_bytes(_read(SMAPS), begin, begin + nbytes) / most if most else 1.0

    def populate(self, start: int, nbytes: int) -> None:
        """Read a range from the drive, into huge pages of the page cache where the file system can, and map
        it. OSError where the drive fails, or the system is too old."""
        self._advise(_MADV_POPULATE_READ, start, nbytes)

    def collapse(self, start: int, nbytes: int) -> None:
        """Gather a range in huge pages of the page cache. OSError where the kernel cannot, for this file or
        at all, or has no memory in one piece."""
        self._advise(_MADV_COLLAPSE, start, nbytes)

    def copy(self, start: int, nbytes: int) -> None:
        """Put private copies in the place of the file's pages, huge ones where the system grants it; who
        reads there meanwhile notices nothing. `start`: a multiple of HUGE_PAGE_BYTES. OSError."""
        room, skip = _room(nbytes, mmap.PROT_READ | mmap.PROT_WRITE)
        room.madvise(mmap.MADV_HUGEPAGE)
        copies = np.frombuffer(room, np.uint8)[skip : skip + nbytes]
        copies[:] = self.array()[start : start + nbytes]
        self._has_copies = True
        _move(copies.ctypes.data, nbytes, to=self.array().ctypes.data + start)
        del copies
        room.close()

    def _advise(self, advice: int, start: int, nbytes: int) -> None:
        self._memory.madvise(advice, self._start + start, nbytes)


class PageCacheFile:
    """The pages of the page cache that a file is written into, made huge before where the file system can do
    that: those that writes make begin and end where a write does."""

    __slots__ = ("_file",)

    def __init__(self, fd: int) -> None:
        """The file has the size that it is to have."""
        size = os.fstat(fd).st_size
        self._file = MappedFile(fd, size) if size and sys.platform == "linux" else None

    def prepare(self, offset: int, nbytes: int) -> None:
        """Before a range is written for the first time. Any number of threads may call it."""
        if self._file is None or offset >= self._file.nbytes:
            return
        start = offset // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        with suppress(OSError):  # an old kernel
            self._file.populate(start, min(offset + nbytes, self._file.nbytes) - start)


def shared_pages(fd: int, nbytes: int) -> NDArray[np.uint8]:
    """A file in memory of this size, mapped to be read and written, at an address that huge pages can have.
    Nothing here keeps the file once `map_instead` has put another one there. OSError."""
    room, start = _room(nbytes, mmap.PROT_READ | mmap.PROT_WRITE)
    memory = np.frombuffer(room, np.uint8)[start : start + nbytes]
    map_instead(memory, fd)
    return memory


def map_instead(memory: NDArray[np.uint8], fd: int) -> None:
    """Another file of this size, in the place of what `shared_pages` has mapped there. OSError."""
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if _libc().mmap(memory.ctypes.data, memory.nbytes, access, flags, fd, 0) == _MAP_FAILED:
        raise _error()


def advise_huge(memory: NDArray[np.uint8]) -> None:
    """Have the system put huge pages there, where it gives any to such memory."""
    _libc().madvise(memory.ctypes.data, memory.nbytes, mmap.MADV_HUGEPAGE)


def give_back(memory: NDArray[np.uint8]) -> None:
    """Pages of anonymous or shared memory, which begins at a page: zero pages are there from then on, and are
    paid for when they are written. Best effort: a system that cannot keeps them."""
    if sys.platform != "linux" or not memory.nbytes:
        return
    at, nbytes = memory.ctypes.data, -(-memory.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    if _libc().madvise(at, nbytes, _MADV_REMOVE):  # of shared memory; private memory refuses it
        _libc().madvise(at, nbytes, mmap.MADV_DONTNEED)


def huge_bytes(smaps: str, begin: int, end: int) -> int:
    """Bytes of the mappings in begin .. end - 1 that huge pages hold, in the words of /proc/self/smaps."""
    found, inside = 0, False
    for line in smaps.splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            first, _, last = words[0].partition("-")
            inside = begin <= int(first, 16) and int(last, 16) < end + mmap.PAGESIZE
        elif inside and words[0] in _HUGE_FIELDS:
            found += int(words[1]) << 10
    return found


def private_huge_pages(settings: Path = TRANSPARENT_HUGE_PAGES) -> bool:
    """Whether the system gives huge pages to private memory that asks for them."""
    of_size = chosen(settings / f"hugepages-{HUGE_PAGE_BYTES >> 10}kB" / "enabled")
    granted = of_size if of_size not in ("", "inherit") else chosen(settings / "enabled")
    return granted in ("always", "madvise")


def chosen(setting: Path) -> str:
    """The word in brackets of a file of the kernel's settings; "" without one."""
    return _read(setting).partition("[")[2].partition("]")[0]


def _room(nbytes: int, protection: int) -> tuple[mmap.mmap, int]:
    """Anonymous pages, and where in them the first huge page may begin; so many bytes follow it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    room = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=flags, prot=protection)
    return room, -np.frombuffer(room, np.uint8).ctypes.data % HUGE_PAGE_BYTES


def _move(pages: int, nbytes: int, *, to: int) -> None:
    """Pages of anonymous memory to where something else is mapped, read-only from then on. The kernel does
    this in one: nobody finds nothing mapped there. What they leave stays theirs: empty, and not given to
    another thread's mapping before it is unmapped."""
    size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    if _libc().mremap(pages, size, size, flags, to) == _MAP_FAILED:
        raise _error()
    if _libc().mprotect(to, size, mmap.PROT_READ):
        raise _error()


@functools.cache
def _libc() -> Any:
    libc = ct.CDLL(None, use_errno=True)
    pointer, size, number = ct.c_void_p, ct.c_size_t, ct.c_int
    libc.mmap.argtypes, libc.mmap.restype = (pointer, size, number, number, number, ct.c_long), pointer
    libc.mremap.argtypes, libc.mremap.restype = (pointer, size, size, number, pointer), pointer
    libc.mprotect.argtypes = libc.madvise.argtypes = (pointer, size, number)
    return libc


def _error() -> OSError:
    number = ct.get_errno()
    return OSError(number, os.strerror(number))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
