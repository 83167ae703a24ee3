"""Pages, and snapshots of recurrent states, whose content comes from elsewhere: another engine, or a tier.

    free -- begin --> held, being written from outside -- settle --> free, findable by their names
                                                           |
                                                           +-------> blank, where nothing came

While they are held nobody else is given them, so a copy that comes late overwrites nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from firelane.kv.pool import BlockPool, NamedPage

WantedPage = NamedPage
STATES = -1
"""In place of a cache group: snapshots of recurrent states, by the names of their last blocks."""


class WantedState(NamedTuple):
    """A snapshot of a recurrent state. names: of the prefixes that it may be of, the best one first. place:
    the state to write it to. tenant: as in NamedPage."""

    names: list[bytes]
    place: int
    tenant: bytes = b""


class IncomingPages:
    """Owner of the pages from `begin` to `settle`."""

    def __init__(self, pool: BlockPool, first: int = 0) -> None:
        """first: the number of the pool's first page for those who write to it."""
        self._pool, self._first = pool, first
        self.is_held_up: Callable[[], bool] = lambda: False
        """Free pages are still written to by a step in flight: what comes from outside does not wait for
        steps, as the next one does. None is given out meanwhile."""
        self._held: dict[int, WantedPage] = {}
        self.begun = 0
        """Pages so far, which only grows: what was planned with free pages before has to be planned anew."""

    @property
    def num_pages(self) -> int:
        return len(self._held)

    def pages(self) -> Iterator[int]:
        """Their numbers in the pool."""
        return (page - self._first for page in self._held)

    def begin(self, wanted: Sequence[WantedPage], most: int) -> list[int]:
        """Pages for the first of these, at most `most`; a page that is there is given up for them, the least
        recently used first."""
        count = 0 if self.is_held_up() else max(0, min(len(wanted), most, self._pool.num_free))
        pages = [self._first + page for page in self._pool.take_many(count)]
        self.begun += count
        self._held |= zip(pages, wanted, strict=False)
        return pages

    def settle(self, pages: Sequence[int], arrived: Sequence[bool]) -> None:
        """Nobody writes to these pages any more; arrived: whose content is there, and has been checked."""
        for page, is_there in zip(pages, arrived, strict=True):
            wanted = self._held.pop(page)
            if is_there:
                self._pool.publish(page - self._first, *wanted)
        self._pool.release([page - self._first for page in pages])

    def settle_as(self, page: int, name: bytes) -> None:
        """The same of a page for which several contents were wanted: that of `name` is there, of b"" none."""
        self._held[page] = self._held[page]._replace(name=name)
        self.settle([page], [bool(name)])
