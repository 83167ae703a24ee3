"""Settings of a process that runs a gateway."""

from __future__ import annotations

import gc
import sys

from firelane.heap import give_back_freed, map_large_blocks
from firelane.server.inherited_setup import set_up_inherited

GC_ALLOCATIONS = 50_000
"""Between two collections, in place of the library's 700: modules and requests leave few cycles
behind."""
SWITCH_S = 0.001
"""After which a thread that decodes or renders lets the event loop on, in place of 0.005."""


def set_up() -> None:
    """Before the event loop. Raises UsageError where a server cannot run here."""
    set_up_inherited()
    map_large_blocks()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    sys.setswitchinterval(SWITCH_S)


def freeze_made() -> None:
    """Called when all that lives as long as the server has been made: no collection looks at it again, and
    what was freed meanwhile goes back to the system. The few cycles that a start leaves behind do not pay for
    a collection."""
    gc.freeze()
    give_back_freed()
