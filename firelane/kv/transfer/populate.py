"""Memory that is there before it is needed: the first touch of a page of shared memory takes longer than the
copy that touches it."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
from numpy.typing import NDArray

POPULATE_READ, POPULATE_WRITE = 22, 23
"""MADV_ of Linux 5.14."""
AT_ONCE = 64 << 20
"""Bytes, between which the thread can end."""


def populate(memory: NDArray[np.uint8], *, write: bool) -> None:
    """Have the system map all of it, its content unchanged; where it cannot, the first touch does. The GIL is
    released meanwhile."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    begin = memory.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    end = memory.ctypes.data + memory.nbytes
    for at in range(begin, end, AT_ONCE):
        length = ctypes.c_size_t(min(AT_ONCE, end - at))
        if advise(ctypes.c_void_p(at), length, POPULATE_WRITE if write else POPULATE_READ):
            return
