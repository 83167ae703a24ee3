"""Free memory of this machine, as far as its system tells."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

from firelane.native import cgroup


def available_bytes() -> int:
    """Memory that can be had without swapping: the system's estimate, within the limits of control groups."""
    if sys.platform != "linux":
        return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2  # no estimate of what others will give back
    fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    free = next(int(f[1]) * 1024 for f in fields if f[0] == "MemAvailable:")
    left = cgroup.memory_left()
    return free if left is None else min(free, left)
