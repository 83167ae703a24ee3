"""Settings of a process that runs a gateway."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys

from firelane import env
from firelane.errors import UsageError
from firelane.storage import USED_BY_OTHERS, keep_from_others
from firelane.text.heap import map_large_blocks

FEWEST_FILES = 256
"""Descriptors without which a server does not start."""
GC_ALLOCATIONS = 50_000
"""Between two collections, in place of the library's 700: modules and requests leave few cycles
behind."""
SWITCH_S = 0.001
"""After which a thread that decodes or renders lets the event loop on, in place of 0.005."""


def set_up() -> None:
    """Before the event loop. Raises UsageError where a server cannot run here."""
    keep_from_others(USED_BY_OTHERS)
    raise_file_limit()
    map_large_blocks()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    env.set_for_server()
    sys.setswitchinterval(SWITCH_S)


def freeze_made() -> None:
    """Called when all that lives as long as the server has been made: no collection looks at it again. The
    few cycles that a start leaves behind do not pay for one."""
    gc.freeze()


def raise_file_limit() -> None:
    """Each connection takes a descriptor: open as many as the system lets this process have. Raises
    UsageError where these are too few to serve.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        raise UsageError(
            f"this process may open {soft} files, and a server needs at least {FEWEST_FILES}: "
            "raise the limit (ulimit -n)"
        )
