"""The memory of the KV cache: equal pages, and states of equal size, in private memory or in memory that
another process can map."""

from __future__ import annotations

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.codegen.layout import CACHE_LINE_BYTES, Layout
from firelane.backends.cpu.memory import renew, shared_zeroed, zeroed
from firelane.contract import HostPages
from firelane.native.pages import give_back

FORMAT = 1
"""The version of the layout of keys and values inside of a page (csrc/attention/rope.h)."""
STATE_FORMAT = 1
"""The version of the layout of a layer's numbers inside of a state."""


class PagePool:
    """Owner of the pages; `pages` is uint8 [num_pages, page_bytes], zeroed."""

    def __init__(
        self, layout: Layout, *, shared: bool = False, memory: NDArray[np.uint8] | None = None
    ) -> None:
        """memory: of others, who have the pages, too. Raises OutOfMemoryError."""
        self._layout, self._fd = layout, -1
        nbytes = pages_bytes(layout)
        if memory is not None:
            self.memory = memory
        elif shared:
            self._fd, self.memory = shared_zeroed(nbytes)
        else:
            self.memory = zeroed(nbytes)
        self.pages = pages_in(self.memory, layout)

    @property
    def as_bytes(self) -> HostPages:
        """Valid until `release`."""
        return HostPages(pages=self.pages, layout_id=layout_id(self._layout), fd=self._fd)

    def standby(self) -> None:
        """Give the memory back: zero pages are there from then on. Other processes have to map the file anew,
        as soon as they can: until then they keep what it was."""
        _give_back(self._fd, self.memory)

    def release(self) -> None:
        """Close the file; idempotent. The mapping goes with the last reference to `pages`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class CpuStatePool:
    """Owner of all recurrent states; `memory` is zeroed, and a cache line longer than they are."""

    def __init__(
        self, layout: Layout, *, shared: bool = False, memory: NDArray[np.uint8] | None = None
    ) -> None:
        """memory: of others, who have the states, too. Raises OutOfMemoryError."""
        self._layout, self._fd = layout, -1
        nbytes = states_bytes(layout)
        if memory is not None:
            self.memory = memory[:nbytes]
        elif shared and layout.limits.state_bytes:
            self._fd, self.memory = shared_zeroed(nbytes)
        else:
            self.memory = zeroed(nbytes)

    @property
    def as_bytes(self) -> HostPages | None:
        """Each state a page; valid until `release`. None where there is no state."""
        if not self._layout.limits.state_bytes:
            return None
        states = states_in(self.memory, self._layout)
        return HostPages(pages=states, layout_id=state_layout_id(self._layout), fd=self._fd)

    def standby(self) -> None:
        """Give the memory back, as PagePool.standby does."""
        _give_back(self._fd, self.memory)

    def release(self) -> None:
        """Close the file of the memory, as PagePool.release does."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _give_back(fd: int, memory: NDArray[np.uint8]) -> None:
    if fd >= 0:
        renew(fd, memory)
    else:
        give_back(memory)


def pages_bytes(layout: Layout) -> int:
    return layout.limits.num_blocks * layout.page_bytes


def states_bytes(layout: Layout) -> int:
    """With the cache line behind the last state."""
    return layout.limits.num_states * layout.limits.state_bytes + CACHE_LINE_BYTES


def pages_in(memory: NDArray[np.uint8], layout: Layout) -> NDArray[np.uint8]:
    """The pages that begin there, uint8 [num_pages, page_bytes]."""
    return memory[: pages_bytes(layout)].reshape(layout.limits.num_blocks, layout.page_bytes)


def states_in(memory: NDArray[np.uint8], layout: Layout) -> NDArray[np.uint8]:
    """The states that begin there, uint8 [num_states, state_bytes]."""
    count, state_bytes = layout.limits.num_states, layout.limits.state_bytes
    return memory[: count * state_bytes].reshape(count, state_bytes)


def state_layout_id(layout: Layout) -> str:
    """The id of the layout of a recurrent state, like layout_id of pages."""
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
