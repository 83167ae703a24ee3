"""The order in which slots of a tier are given out again: segmented LRU, as in caches of drives.

    add --> probation, the least recently used first -- touch --> protected, at most PROTECTED of all slots
                ^                                                    |
                +--------- the least recently used of too many ------+

So what was asked for again outlives what was stored once, however much of that comes by. Every operation is
O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

PROTECTED = 0.8


class SegmentedLru:
    def __init__(self, capacity: int) -> None:
        """capacity: slots that there are."""
        self._most_protected = int(PROTECTED * capacity)
        self._probation: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def __contains__(self, slot: int) -> bool:
        return slot in self._probation or slot in self._protected

    def __iter__(self) -> Iterator[int]:
        """The next one to give out first."""
        yield from self._probation
        yield from self._protected

    def add(self, slot: int) -> None:
        self._probation[slot] = None

    def touch(self, slot: int) -> None:
        """Its content was asked for again."""
        if slot in self._protected:
            self._protected.move_to_end(slot)
            return
        del self._probation[slot]
        self._protected[slot] = None
        if len(self._protected) > self._most_protected:
            oldest, _ = self._protected.popitem(last=False)
            self._probation[oldest] = None

    def remove(self, slot: int) -> None:
        if self._probation.pop(slot, self) is self:
            del self._protected[slot]

    def first(self) -> int:
        """The one to give out next. StopIteration where there is none."""
        return next(iter(self))
