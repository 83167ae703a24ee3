"""The memory of the KV cache: equal pages, and states of equal size, in private memory or in memory that
another process can map."""

from __future__ import annotations

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.layout import CACHE_LINE_BYTES, Layout
from firelane.backends.cpu.memory import shared_zeroed, zeroed
from firelane.contract import HostPages

FORMAT = 1
"""Of keys and values inside of a page, as csrc/rope.h lays them out."""
STATE_FORMAT = 1
"""Of the numbers of a layer inside of a state."""


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
    def as_bytes(self) -> HostPages:
        """Valid until `release`."""
        return HostPages(pages=self.pages, layout_id=layout_id(self._layout), fd=self._fd)

    def release(self) -> None:
        """Close the file; idempotent. The mapping goes with the last reference to `pages`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class StatePool:
    """Owner of all recurrent states; `memory` is zeroed, and a cache line longer than they are."""

    def __init__(self, layout: Layout, *, shared: bool = False) -> None:
        """Raises OutOfMemoryError."""
        self._layout, self._fd = layout, -1
        limits = layout.limits
        self._nbytes = limits.num_states * limits.state_bytes
        nbytes = self._nbytes + CACHE_LINE_BYTES
        if shared and self._nbytes:
            self._fd, self.memory = shared_zeroed(nbytes)
        else:
            self.memory = zeroed(nbytes)

    @property
    def as_bytes(self) -> HostPages | None:
        """Each state a page; valid until `release`. None where there is no state."""
        if not self._nbytes:
            return None
        states = self.memory[: self._nbytes].reshape(self._layout.limits.num_states, -1)
        return HostPages(pages=states, layout_id=state_layout_id(self._layout), fd=self._fd)

    def release(self) -> None:
        """As PagePool.release."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def state_layout_id(layout: Layout) -> str:
    """As layout_id, of a recurrent state."""
    layers = [(one.name, one.shape, layout.state_offsets[one.name]) for one in layout.program.state_layers]
    described = ("cpu", STATE_FORMAT, layers)
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


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
