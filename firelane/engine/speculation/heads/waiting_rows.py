"""WaitingRows: how far a layer of a head has come with the rows of a sequence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class WaitingRows:
    """Rows up to `computed` are in the layer's cache; what those behind read waits: of the first layer what
    the target has computed, of the others what the layer before has told, float32 [n, width] each."""

    __slots__ = ("_parts", "computed")

    def __init__(self, computed: int) -> None:
        self.computed = computed
        self._parts: list[F32] = []

    @property
    def count(self) -> int:
        """Rows that wait."""
        return sum(map(len, self._parts))

    @property
    def stop(self) -> int:
        return self.computed + self.count

    def add(self, rows: F32) -> None:
        """Keep a copy of rows that follow those known."""
        if len(rows):
            self._parts.append(rows.copy())

    def clear(self) -> None:
        self._parts.clear()

    def all(self, width: int) -> F32:
        """All rows that wait, in one array. width: theirs."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts) if self._parts else np.empty((0, width), np.float32)]
        return self._parts[0]

    def take(self, count: int) -> F32:
        """The first rows that wait, at least one, which count as computed from now on."""
        joined = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        self._parts = [joined[count:]] if count < len(joined) else []
        self.computed += count
        return joined[:count]
