"""The memory that tiers copy from and to: an executor's pages and, as parts of the size of a page, the
snapshots of recurrent states."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.contract import PageMemory
from firelane.kv.pool import STATES, NamedPage, WantedPage


class CachedMemory:
    """Cache groups are numbered from 0; the parts of a snapshot follow, each as a group of its own, with the
    name of the snapshot."""

    def __init__(self, pages: PageMemory, num_groups: int, states: PageMemory | None = None) -> None:
        """states: uint8 [num_states, state_bytes], in which each snapshot is one row; None: of a program
        without recurrent state."""
        self._pages, self._states, self._first = pages, states, num_groups
        self.page_bytes = pages.page_bytes
        parts = 0 if states is None else -(-states.page_bytes // pages.page_bytes)
        self.num_groups = num_groups + parts
        """The number of groups of pages and parts together."""
        self.layout_id = pages.layout_id if states is None else f"{pages.layout_id} {states.layout_id}"
        self.num_pages = pages.num_pages + parts * (0 if states is None else states.num_pages)

    def buffer(self) -> NDArray[np.uint8]:
        """Memory for the copies of one thread, uint8 [page_bytes]."""
        return self._pages.buffer(1)[0]

    def read(self, group: int, place: int, buffer: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """The bytes of a page, or of a part of a state, uint8 [at most page_bytes]: where they are, or else
        copied to `buffer`. None where they cannot be had."""
        memory, found = self._of(group), self.room(group, place, buffer)
        if memory.pages is not None or memory.read([place], found[None], self._first_byte(group)):
            return found
        return None

    def room(self, group: int, place: int, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Memory for the bytes of a page, or of a part of a state, for `write`: their place
        itself, or a part of `buffer`."""
        memory, begin = self._of(group), self._first_byte(group)
        end = min(begin + self.page_bytes, memory.page_bytes)
        return buffer[: end - begin] if memory.pages is None else memory.pages[place, begin:end]

    def write(self, group: int, place: int, written: NDArray[np.uint8]) -> bool:
        """Put bytes that lie in the room of a page into it. Returns False where that cannot be done."""
        memory = self._of(group)
        return memory.pages is not None or memory.write([place], written[None], self._first_byte(group))

    def _of(self, group: int) -> PageMemory:
        return self._pages if group < self._first or self._states is None else self._states

    def _first_byte(self, group: int) -> int:
        """In a state; 0 of a page."""
        return max(0, group - self._first) * self.page_bytes

    @property
    def part_groups(self) -> range:
        """Groups of the parts of a snapshot."""
        return range(self._first, self.num_groups)

    def parts(self, named: NamedPage) -> list[WantedPage]:
        """The page itself; of a snapshot, which has the group STATES, its parts."""
        if named.group != STATES:
            return [named]
        return [WantedPage(group, named.name, named.tenant) for group in self.part_groups]
