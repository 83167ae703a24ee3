"""Zeroed memory that is paid for when it is touched: private, or a file in memory that another process can
map.

What of this only Linux has stays in this module: huge pages, files in memory.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import sys
from contextlib import suppress
from io import FileIO

import numpy as np
from numpy.typing import NDArray

from firelane.errors import OutOfMemoryError, UsageError
from firelane.native.pages import advise_huge, map_instead, shared_pages

log = logging.getLogger(__name__)

GIB = 1 << 30
HUGE_PAGE_BYTES = 2 << 20
SEALS = 0x1 | 0x2 | 0x4 | 0x10
"""F_SEAL_SEAL, SHRINK, GROW and FUTURE_WRITE, which Python does not name before 3.13: who has the descriptor
maps the file to read it."""


def zeroed(nbytes: int) -> NDArray[np.uint8]:
    """Anonymous zero pages, page-aligned, huge where the system grants it; given back when the array dies.

    Raises OutOfMemoryError where the system refuses so much.
    """
    try:
        memory = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise _refused(nbytes, error) from error
    if nbytes >= HUGE_PAGE_BYTES and sys.platform == "linux":
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def shared_zeroed(nbytes: int, *, reserved: bool = True) -> tuple[int, NDArray[np.uint8]]:
    """The descriptor of a file in memory, and its zero pages, mapped here; whoever has the descriptor can map
    them, to read them, but not cut them short. The caller closes the descriptor.

    Huge pages where enough are reserved (and `reserved` says that they may be taken), else where the system
    gives them to shared memory on advice. Raises OutOfMemoryError where the system refuses so much,
    UsageError where it has no such files.
    """
    if sys.platform != "linux":
        raise UsageError("kv_cache_memory = shared: only Linux has files in memory, leave it out")
    try:
        if reserved and nbytes >= HUGE_PAGE_BYTES:
            with suppress(OSError):
                return _mapped_file(nbytes, os.MFD_HUGETLB)
        return _mapped_file(nbytes, 0)
    except OSError as error:
        raise _refused(nbytes, error) from error


def renew(fd: int, memory: NDArray[np.uint8]) -> None:
    """Zero pages of another file in the place of those of `shared_zeroed`, under the same descriptor: a file
    that others may not write to gives no page back to the system, but all of them once nobody has it mapped.
    The pages are paid for when they are written, and are huge on advice alone. Best effort: where the system
    makes no file the old one stays."""
    try:
        with _file(memory.nbytes, 0) as file:
            map_instead(memory, file.fileno())
            _finish(file.fileno(), memory)
            os.dup2(file.fileno(), fd, inheritable=False)
    except OSError as error:
        log.warning("memory_not_given_back bytes=%d error=%r", memory.nbytes, str(error))


def _mapped_file(nbytes: int, flags: int) -> tuple[int, NDArray[np.uint8]]:
    size = -(-max(nbytes, 1) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    with _file(size, flags) as file:
        memory = shared_pages(file.fileno(), size)
        _finish(file.fileno(), memory, is_huge=bool(flags))
        return os.dup(file.fileno()), memory


def _file(size: int, flags: int) -> FileIO:
    """A new one of this size."""
    file = FileIO(os.memfd_create("firelane-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags), "r+")
    try:
        os.ftruncate(file.fileno(), size)
    except OSError:
        file.close()
        raise
    return file


def _finish(fd: int, memory: NDArray[np.uint8], *, is_huge: bool = False) -> None:
    """Once it is mapped here. is_huge: its pages are."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    if not is_huge:
        advise_huge(memory)


def _refused(nbytes: int, error: OSError) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"{nbytes / GIB:.1f} GiB of memory cannot be had ({error.strerror}): free some, or lower "
        "--kv-cache-gib, --max-model-len or --max-num-seqs"
    )
