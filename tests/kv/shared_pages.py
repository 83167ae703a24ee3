"""Pages in a file in memory, as the CPU backend makes them."""

from __future__ import annotations

import numpy as np

from firelane.backends.cpu.memory import shared_zeroed
from firelane.contract import PageMemory


def page_memory(num_pages, page_bytes, *, layout_id="layout", shared=True):
    """The caller closes its descriptor."""
    if not shared:
        return PageMemory(pages=np.zeros((num_pages, page_bytes), np.uint8), layout_id=layout_id)
    fd, memory = shared_zeroed(num_pages * page_bytes, reserved=False)
    pages = memory[: num_pages * page_bytes].reshape(num_pages, page_bytes)
    return PageMemory(pages=pages, layout_id=layout_id, fd=fd)
