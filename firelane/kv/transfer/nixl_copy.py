"""Copies of found pages by NIXL: as StreamedCopy gives those of the connection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from firelane.kv.transfer.exported import TAG_BYTES
from firelane.kv.transfer.nixl import MOST_PAGES, NixlSession
from firelane.kv.transfer.page_copy import Numbers, PageCopier, Sums

BATCH = 128
"""Pages of one Find: while the first of them are read there is nothing to copy, and nothing to read while the
last ones are copied."""
Tags = NDArray[np.uint64]


class NixlCopy:
    """From the source's memory into the staging memory of several sessions in turns, while what another one
    has read is copied to its places here, which gives its checksums. Tags are read once their pages are
    there."""

    transport, streams, batch = "nixl", False, BATCH

    def __init__(
        self, sessions: Sequence[NixlSession], part: int, copier: PageCopier, pages: NDArray[np.uint8]
    ) -> None:
        """part: 0 of pages, 1 of states, which have the same sessions, one after the other. pages: here."""
        self._sessions, self._part, self._copier, self._pages = sessions, part, copier, pages
        self._page_bytes = pages.shape[1]
        self._at_once = min(sessions[0].tags_at // self._page_bytes, MOST_PAGES)

    def take(self, numbers: Numbers, places: Numbers, deadline_s: float) -> tuple[Sums, Tags]:
        sums, tags = np.empty(len(numbers), np.uint64), np.empty(len(numbers), np.uint64)
        chunks = [slice(at, at + self._at_once) for at in range(0, len(numbers), self._at_once)]
        in_turn = cycle(self._sessions)
        for session, chunk in zip(self._sessions, chunks, strict=False):
            self._ask(session, numbers[chunk])
        for index, (session, chunk) in enumerate(zip(in_turn, chunks, strict=False)):
            session.wait(deadline_s)
            pages, tags[chunk] = self._staged(session, len(numbers[chunk]))
            order = np.arange(len(pages), dtype=np.int64)
            sums[chunk] = self._copier.copy(pages, order, self._pages, places[chunk], deadline_s)
            for following in chunks[index + len(self._sessions) :][:1]:
                self._ask(session, numbers[following])
        return sums, tags

    def hang_up(self) -> None:
        for session in self._sessions:
            session.hang_up()

    def close(self) -> None:
        for session in self._sessions:
            session.close()

    def _ask(self, session: NixlSession, numbers: Numbers) -> None:
        items, memory = numbers.tolist(), 2 * self._part
        session.ask([(memory, self._page_bytes, items, 0), (memory + 1, TAG_BYTES, items, session.tags_at)])

    def _staged(self, session: NixlSession, count: int) -> tuple[NDArray[np.uint8], Tags]:
        pages = session.staged(0, count * self._page_bytes)
        tags = session.staged(session.tags_at, count * TAG_BYTES)
        return pages.reshape(count, self._page_bytes), tags.view(np.uint64)
