"""Copies of found pages by NIXL: see Copy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.kv.transfer.exported import TAG_BYTES
from firelane.kv.transfer.nixl import MOST_PAGES, NixlSession
from firelane.kv.transfer.page_copy import Numbers, PageCopier, Sums
from firelane.nixl.messages import Piece

BATCH = 128
"""Pages of one Find: while the first of them are read there is nothing to copy, and nothing to read while the
last ones are copied."""
Tags = NDArray[np.uint64]


class NixlCopy:
    """From the source's memory into one half of the staging memory, while what is in the other one is copied
    to its places here, which gives its checksums. Tags are read once their pages are there."""

    transport, streams, batch = "nixl", False, BATCH

    def __init__(self, session: NixlSession, part: int, copier: PageCopier, pages: NDArray[np.uint8]) -> None:
        """part: 0 of pages, 1 of states. pages: here. Several have one session, in turns."""
        self._session, self._part, self._copier, self._pages = session, part, copier, pages
        self._page_bytes = pages.shape[1]
        self._at_once = min(session.half_bytes // self._page_bytes, MOST_PAGES)

    def take(self, numbers: Numbers, places: Numbers, deadline_s: float) -> tuple[Sums, Tags]:
        sums, tags = np.empty(len(numbers), np.uint64), np.empty(len(numbers), np.uint64)
        starts = range(0, len(numbers), self._at_once)
        self._ask(numbers[: self._at_once], half=0)
        for index, start in enumerate(starts):
            half, end = index % 2, start + self._at_once
            if end < len(numbers):
                self._ask(numbers[end : end + self._at_once], half=1 - half)
            self._session.wait(deadline_s)
            count = len(numbers[start:end])
            pages, tags[start:end] = self._staged(half, count)
            order = np.arange(count, dtype=np.int64)
            sums[start:end] = self._copier.copy(pages, order, self._pages, places[start:end], deadline_s)
        return sums, tags

    def hang_up(self) -> None:
        self._session.hang_up()

    def close(self) -> None:
        self._session.close()

    def _ask(self, numbers: Numbers, half: int) -> None:
        pages = self._pieces(numbers, 2 * self._part, self._page_bytes, half * self._session.half_bytes)
        tags = self._pieces(numbers, 2 * self._part + 1, TAG_BYTES, self._tags_at(half))
        self._session.ask([pages, tags])

    def _pieces(self, numbers: Numbers, memory: int, nbytes: int, place: int) -> list[Piece]:
        return [
            (memory, number * nbytes, nbytes, place + index * nbytes)
            for index, number in enumerate(numbers.tolist())
        ]

    def _tags_at(self, half: int) -> int:
        return 2 * self._session.half_bytes + half * MOST_PAGES * TAG_BYTES

    def _staged(self, half: int, count: int) -> tuple[NDArray[np.uint8], Tags]:
        pages = self._session.staged(half * self._session.half_bytes, count * self._page_bytes)
        tags = self._session.staged(self._tags_at(half), count * TAG_BYTES)
        return pages.reshape(count, self._page_bytes), tags.view(np.uint64)
