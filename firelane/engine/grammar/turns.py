"""Turns of clients at what is done for one at a time."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
Path = tuple[str, ...]


class Turns(Generic[ItemT]):
    """Items that wait, each for somebody: a path of `depth` names, such as tenant, address and connection. At
    every level those that have items take turns, whoever has how many; the items of one path come in order.
    """

    __slots__ = ("_depth", "_items", "_parts", "_prefix", "_size")

    def __init__(self, depth: int, prefix: Path = ()) -> None:
        self._depth = depth
        self._prefix = prefix
        self._items: deque[ItemT] = deque()
        self._parts: OrderedDict[str, Turns[ItemT]] = OrderedDict()  # whose turn it is first
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, path: Path, item: ItemT) -> None:
        """path: as many names as the depth."""
        self._size += 1
        if not self._depth:
            self._items.append(item)
            return
        part = self._parts.get(path[0])
        if part is None:
            part = self._parts[path[0]] = Turns(self._depth - 1, (*self._prefix, path[0]))
        part.put(path[1:], item)

    def take(self, busy: Container[Path] = ()) -> ItemT | None:
        """The next one of those whose path does not begin with one that is busy; None where there is none."""
        if self._prefix in busy or not self._size:
            return None
        if not self._depth:
            self._size -= 1
            return self._items.popleft()
        for name, part in self._parts.items():
            item = part.take(busy)
            if item is not None:
                self._size -= 1
                self._parts.move_to_end(name)
                if not part:
                    del self._parts[name]
                return item
        return None

    def drop(self) -> ItemT:
        """The last item of who has most, at each level; of equals, who came last. Raises IndexError where
        nothing waits.
        """
        if not self._size:
            raise IndexError("nothing waits")
        self._size -= 1
        if not self._depth:
            return self._items.pop()
        name = max(reversed(self._parts), key=lambda one: len(self._parts[one]))
        part = self._parts[name]
        item = part.drop()
        if not part:
            del self._parts[name]
        return item
