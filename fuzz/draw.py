"""Choices that the bytes of a case make, for targets whose inputs have a structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")


class Draw:
    """Takes the choices from the front of `data`. Where that ends, each further choice is the first one, so
    that a short case stays small."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Whether all bytes were taken."""
        return self._at >= len(self._data)

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        size = 1 if count <= 256 else 2 if count <= 1 << 16 else 4
        return int.from_bytes(self._take(size), "little") % count

    def choice(self, items: Sequence[ItemT]) -> ItemT:
        return items[self.below(len(items))]

    def between(self, low: int, high: int) -> int:
        """A number from `low` to `high`, which may be both."""
        return low + self.below(high - low + 1)

    def chance(self) -> float:
        """A number from 0 to 1, without 1."""
        return self.below(1 << 8) / (1 << 8)

    def sample(self, items: Sequence[ItemT], count: int) -> list[ItemT]:
        """So many of the items, none twice."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self._take(len(self._data))

    def _take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]
