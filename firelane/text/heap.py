"""Memory that this process needs no more, given back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 1 << 20


def map_large_blocks() -> None:
    """Have the C library map large blocks by themselves, for good, so that they go back to the system when
    they are freed. By itself it puts them among the small ones once it has freed one.
    """
    mallopt = _library_call("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def trim_heap() -> None:
    """After a large request, for two reasons: errors hold on to what they were raised about until cycles are
    collected, which is seldom, and the C library keeps what was freed in pieces. Takes some milliseconds.
    """
    gc.collect()
    trim = _library_call("malloc_trim")
    if trim is not None:
        trim(0)


def _library_call(name: str) -> Callable[..., int] | None:
    """None where this system's library has no such call."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
