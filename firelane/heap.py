"""Memory that this process needs no more, given back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
MAPPED_BYTES = 1 << 20


def map_large_blocks() -> None:
    """Have the C library map large blocks by themselves, for good, so that they go back to the system when
    they are freed. By itself it puts them among the small ones once it has freed one.
    """
    mallopt = _library_call("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def share_one_heap() -> None:
    """Have all threads allocate from one heap, called before there are any others. By itself the C library
    makes several, and gives back none of what lies free at the end of those of threads.
    """
    mallopt = _library_call("mallopt")
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)


def trim_heap() -> None:
    """After a large request, for two reasons: errors hold on to what they were raised about until cycles are
    collected, which is seldom, and the C library keeps what was freed in pieces. Takes some milliseconds.
    """
    gc.collect()
    give_back_freed()


def give_back_freed() -> None:
    """Give back what the C library keeps of freed memory, whichever thread had it. Python's other threads go
    on meanwhile."""
    trim = _library_call("malloc_trim")
    if trim is not None:
        trim(0)


def _library_call(name: str) -> Callable[..., int] | None:
    """None where this system's library has no such call."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
