"""Pages that other engines have stored: read from their files, and checked, without their help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane.kv.tiers.records import Kind, parse
from firelane.kv.tiers.segment import TierSegment, open_others
from firelane.kv.tiers.slots import PageKey

Place = tuple[TierSegment, int, bytes]
"""Segment, slot and proof of a page."""


class ForeignSegments:
    """Pages in the files of others, as of the last `refresh`. A page that has changed since has another
    proof."""

    def __init__(self, directory: Path, kind: Kind, own: TierSegment) -> None:
        self._directory, self._kind, self._own = directory, kind, own
        self._known: list[_Known] = []
        self.refresh()

    def __contains__(self, key: PageKey) -> bool:
        return any(key in known.places for known in self._known)

    def find(self, key: PageKey) -> Iterator[Place]:
        for known in self._known:
            place = known.places.get(key)
            if place is not None:
                yield known.segment, *place

    def refresh(self) -> None:
        """Raises OSError."""
        stems = {self._own.stem, *(known.segment.stem for known in self._known)}
        new = open_others(self._directory, self._kind, stems)
        self._known += [_Known(segment, self._kind.num_groups) for segment in new]
        for known in self._known:
            known.refresh()

    def close(self) -> None:
        for known in self._known:
            known.segment.close()


class _Known:
    """Known pages of one segment. places: slot and proof by page."""

    def __init__(self, segment: TierSegment, num_groups: int) -> None:
        self.segment, self._num_groups = segment, num_groups
        self.places: dict[PageKey, tuple[int, bytes]] = {}
        self._keys: dict[int, PageKey] = {}
        self._sequences: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._changed_ns = -1

    def refresh(self) -> None:
        """Records whose number has changed are read again: numbers are never given twice."""
        changed_ns = self.segment.changed_ns()
        if changed_ns == self._changed_ns:
            return
        self._changed_ns = changed_ns
        table = self.segment.table()
        before = np.zeros(len(table), np.uint64)
        common = min(len(table), len(self._sequences))
        before[:common] = self._sequences[:common]
        self._sequences = table["sequence"].copy()
        changed = np.flatnonzero(self._sequences != before)
        for slot in changed.tolist():
            key = self._keys.pop(slot, None)
            if key is not None and self.places.get(key, (-1, b""))[0] == slot:
                del self.places[key]
        for record in parse(table, changed, self._num_groups):
            self.places[record.key] = record.slot, record.proof
            self._keys[record.slot] = record.key
