"""Memory that files are read into past the page cache."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Zeros that begin at a page of the system, as direct reads and writes of files need it."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
