"""DriveReader: reads a file in large pieces, past the page cache where the file is not in it.

Filling the page cache costs more processor time than decoding does, and a checkpoint is read once: what is
kept, packed for the kernels, is worth caching, not this. A file that is in the cache already (just
downloaded) is read from there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

PAGE_BYTES = 4096  # no drive in use wants a larger alignment
PROBES = 16


class ReadBuffer:
    """Memory for one read at a time of up to `nbytes`; aligned, and reused. `memory`: in which, of at least
    memory_bytes(nbytes); None: of its own.
    """

    __slots__ = ("pages",)

    def __init__(self, nbytes: int, memory: Bytes | None = None) -> None:
        if memory is None:
            memory = np.empty(self.memory_bytes(nbytes), np.uint8)
        assert len(memory) >= self.memory_bytes(nbytes), f"{len(memory)} bytes for reads of {nbytes}"
        first = -memory.__array_interface__["data"][0] % PAGE_BYTES
        self.pages = memory[first : first + self.memory_bytes(nbytes) - PAGE_BYTES]

    @staticmethod
    def memory_bytes(nbytes: int) -> int:
        """A read may begin and end within pages, and memory within a page."""
        return (-(-nbytes // PAGE_BYTES) + 2) * PAGE_BYTES


class DriveReader:
    """Safe from many threads. Owns its descriptors until it is collected. `direct`: past the page cache."""

    __slots__ = ("__weakref__", "_fd", "direct")

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.direct = False
        if not _is_cached(self._fd):
            with contextlib.suppress(OSError, AttributeError):  # not every file system and system can
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
                os.close(self._fd)
                self._fd, self.direct = fd, True
        weakref.finalize(self, os.close, self._fd)

    def read(self, offset: int, nbytes: int, buffer: ReadBuffer) -> Bytes:
        """The bytes at `offset`, in `buffer`. OSError when the file has fewer."""
        if not self.direct:
            out = buffer.pages[:nbytes]
            pread(self._fd, offset, out)
            return out
        first = offset - offset % PAGE_BYTES
        skip = offset - first
        pages = buffer.pages[: -(-(skip + nbytes) // PAGE_BYTES) * PAGE_BYTES]
        done = 0
        while done < skip + nbytes:
            # Whole pages, until the file ends: a short read within one is its end.
            count = self._read_pages(first + done, pages[done:])
            done += count
            if count == 0 or done % PAGE_BYTES:
                break
        if done < skip + nbytes:
            raise OSError(5, f"the file ends at byte {first + done}")
        return pages[skip : skip + nbytes]

    def _read_pages(self, offset: int, pages: Bytes) -> int:
        """Read pages; returns how many bytes were read. Not every memory that a driver has pinned can be
        written by a drive: then they take a way through memory that can."""
        try:
            return os.preadv(self._fd, [pages.data], offset)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
        own = ReadBuffer(len(pages)).pages[: len(pages)]
        count = os.preadv(self._fd, [own.data], offset)
        pages[:count] = own[:count]
        return count


def pread(fd: int, offset: int, out: Bytes) -> None:
    """Fill `out` with the bytes at `offset`. OSError when there are fewer."""
    done = 0
    while done < len(out):
        count = os.preadv(fd, [out[done:].data], offset + done)
        if count == 0:
            raise OSError(5, f"the file ends at byte {offset + done}")
        done += count


def read_ranges(path: Path, ranges: Sequence[tuple[int, int]], *, cached: bool) -> Iterator[bytes]:
    """The bytes begin .. end - 1 of many small ranges. Unless they are `cached`, all are asked for before the
    first is waited for: a drive is slow at one small read after the other. OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # nothing around them
            for begin, end in () if cached else ranges:
                os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_WILLNEED)
        for begin, end in ranges:
            yield os.pread(fd, end - begin, begin)
    finally:
        os.close(fd)


def _is_cached(fd: int) -> bool:
    """Whether most of the file is in the page cache, from a few of its pages; True where nobody can tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return True
    size = os.fstat(fd).st_size
    places = [size * i // PROBES for i in range(PROBES)]
    cached = 0
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # a probe fetches nothing else
        for place in places:
            with contextlib.suppress(BlockingIOError):
                cached += os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    except OSError:
        return True
    return 2 * cached >= PROBES
