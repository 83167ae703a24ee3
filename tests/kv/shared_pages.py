"""Pages in a file in memory, as the CPU backend makes them, and pages that are copied in and out."""

from __future__ import annotations

import numpy as np

from firelane.backends.cpu.memory import shared_zeroed
from firelane.contract import HostPages


class CopiedPages:
    """A page memory that shows others no array of this process (cf. PageMemory). It copies nothing while it
    is away."""

    fd = -1

    def __init__(self, *, pages, layout_id):
        self._host = HostPages(pages=pages, layout_id=layout_id)
        self.pages, self.array, self.layout_id, self.buffer = None, pages, layout_id, self._host.buffer
        self.num_pages, self.page_bytes = pages.shape
        self.is_away, self.copied = False, 0

    def read(self, pages, into, first=0):
        self.copied += len(pages)
        return not self.is_away and self._host.read(pages, into, first)

    def write(self, pages, source, first=0):
        self.copied += len(pages)
        return not self.is_away and self._host.write(pages, source, first)


def copied(memory):
    """The same pages, or None, as memory that is no array."""
    return memory and CopiedPages(pages=memory.pages, layout_id=memory.layout_id)


def array_of(memory):
    """uint8 [num_pages, page_bytes], of either kind."""
    return memory.array if memory.pages is None else memory.pages


def page_memory(num_pages, page_bytes, *, layout_id="layout", shared=True, copied=False):
    """The caller closes its descriptor."""
    if copied:
        return CopiedPages(pages=np.zeros((num_pages, page_bytes), np.uint8), layout_id=layout_id)
    if not shared:
        return HostPages(pages=np.zeros((num_pages, page_bytes), np.uint8), layout_id=layout_id)
    fd, memory = shared_zeroed(num_pages * page_bytes, reserved=False)
    pages = memory[: num_pages * page_bytes].reshape(num_pages, page_bytes)
    return HostPages(pages=pages, layout_id=layout_id, fd=fd)
