"""The memory of the KV cache: equal pages, in private memory or in memory that another process can map."""

from __future__ import annotations

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.memory import shared_zeroed, zeroed
from firelane.contract import PageMemory

FORMAT = 1
"""Of keys and values inside of a page, as csrc/rope.h lays them out."""


class PagePool:
    """Owner of the pages; `pages` is uint8 [num_pages, page_bytes], zeroed."""

    def __init__(
        self, layout: Layout, *, shared: bool = False, memory: NDArray[np.uint8] | None = None
    ) -> None:
        """memory: of others, who have the pages, too. Raises OutOfMemoryError."""
        self._layout, self._fd = layout, -1
        num_pages, page_bytes = layout.limits.num_blocks, layout.page_bytes
        nbytes = num_pages * page_bytes
        if memory is not None:
            self.memory = memory
        elif shared:
            self._fd, self.memory = shared_zeroed(nbytes)
        else:
            self.memory = zeroed(nbytes)
        self.pages = self.memory[:nbytes].reshape(num_pages, page_bytes)

    @property
    def as_bytes(self) -> PageMemory:
        """Valid until `release`."""
        return PageMemory(pages=self.pages, layout_id=layout_id(self._layout), fd=self._fd)

    def release(self) -> None:
        """Close the file; idempotent. The mapping goes with the last reference to `pages`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def layout_id(layout: Layout) -> str:
    """Changes with all that the place of a key or value in a page depends on. Which model's they are it does
    not say."""
    groups = [
        (
            group.kind,
            str(group.span),
            [(c.layer, str(c.shape), c.dtype.name) for c in group.layers],
        )
        for group in layout.program.cache_groups
    ]
    described = ("cpu", FORMAT, layout.limits.block_size, layout.page_bytes, groups)
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]
