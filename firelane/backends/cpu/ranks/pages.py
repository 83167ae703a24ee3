"""Pages and states of the ranks of one host, as the engine's process reads and writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.link import RankLink
from firelane.backends.cpu.page_pool import layout_id, pages_in, state_layout_id, states_in
from firelane.parallel.ranks import RankLayout

Part = NDArray[np.uint8]


class RankPages:
    """A PageMemory of several ranks: a page of the group is what its ranks have of it, one after the other,
    each in memory that this process maps.

    All ranks have written what a step writes when the one that draws has its tokens: those of the last stage
    meet behind their last layer in each step, whatever rows it has, and the stages before have sent theirs.
    """

    pages = None
    fd = -1

    def __init__(self, parts: Sequence[Part], layout_id: str) -> None:
        """parts: by rank, uint8 [num_pages, bytes of a page that the rank has]."""
        self._parts, self.layout_id = [part for part in parts if part.shape[1]], layout_id
        self.num_pages = len(parts[0])
        *self._begins, self.page_bytes = accumulate((part.shape[1] for part in self._parts), initial=0)

    def buffer(self, count: int) -> NDArray[np.uint8]:
        return np.empty((count, self.page_bytes), np.uint8)

    def read(self, pages: Sequence[int], into: NDArray[np.uint8], first: int = 0) -> bool:
        for part, columns in self._overlaps(first, into.shape[1]):
            for page, row in zip(pages, into, strict=True):
                np.copyto(row[columns], part[page])
        return True

    def write(self, pages: Sequence[int], source: NDArray[np.uint8], first: int = 0) -> bool:
        for part, columns in self._overlaps(first, source.shape[1]):
            for page, row in zip(pages, source, strict=True):
                np.copyto(part[page], row[columns])
        return True

    def _overlaps(self, first: int, nbytes: int) -> Iterator[tuple[Part, slice]]:
        """The range of each part that lies in the bytes from `first` on, and its range among these bytes."""
        for part, begin in zip(self._parts, self._begins, strict=True):
            low, high = max(first, begin), min(first + nbytes, begin + part.shape[1])
            if low < high:
                yield part[:, low - begin : high - begin], slice(low - first, high - first)


def pages_of(link: RankLink, layouts: Sequence[Layout]) -> RankPages | None:
    """layouts: of all ranks. None where this process does not reach the pages of all."""
    firsts = range(0, len(layouts), link.ranks.lanes if link.sizes.pages else 1)
    return _gathered(link, layouts, firsts, link.pages_of, pages_in, layout_id)


def states_of(link: RankLink, layouts: Sequence[Layout]) -> RankPages | None:
    """Memory of states, like `pages_of`; None also for a program without recurrent state."""
    return _gathered(link, layouts, range(len(layouts)), link.states_of, states_in, state_layout_id)


def _gathered(
    link: RankLink,
    layouts: Sequence[Layout],
    ranks: Sequence[int],
    memory_of: Callable[[int], Part | None],
    shaped: Callable[[Part, Layout], Part],
    name_of: Callable[[Layout], str],
) -> RankPages | None:
    """ranks: those that have a part of their own."""
    found = [memory_of(rank) for rank in ranks]
    parts = [shaped(m, layouts[rank]) for m, rank in zip(found, ranks, strict=True) if m is not None]
    return RankPages(parts, _layout_id(link.ranks, [name_of(one) for one in layouts])) if parts else None


def _layout_id(ranks: RankLayout, names: Sequence[str]) -> str:
    """The id of the layout of pages of so many ranks, cut in this way."""
    digest = hashlib.sha256(repr((ranks, names)).encode()).hexdigest()[:16]
    stages = f" in {ranks.pp} stages" if ranks.pp > 1 else ""
    return f"{digest} of {ranks.ranks} ranks{stages}"
