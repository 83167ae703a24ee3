"""Pages of a source on their way to one reader: from where they lie, or from copies of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from firelane.contract import PageMemory
from firelane.kv.transfer.exported import ExportedMemory
from firelane.kv.transfer.messages import PageLine
from firelane.kv.transfer.page_copy import PageCopier

BATCH = 32
"""Pages of one Find, of those that come one after the other anyway."""
STAGED_BYTES = 16 << 20
"""Bytes of copies at either end of a connection, where a page is not larger."""
Place = tuple[int, int]
"""A page and its tag; the page is -1 where there is none."""


def most_staged(memory: PageMemory) -> int:
    """Pages of one Find of those that are copied on their way: both ends of a connection say the same."""
    return max(1, min(BATCH, STAGED_BYTES // memory.page_bytes))


class PagesInPlace:
    """Outgoing pages of an array, each page once, and by the reader itself where it maps them."""

    most = 1 << 31
    """Pages of one answer."""

    def __init__(self, exported: ExportedMemory, pages: NDArray[np.uint8]) -> None:
        """pages: of the memory that is exported."""
        self._exported, self._pages = exported, pages
        self._numbers: list[int] = []

    def prepare(self, places: Sequence[Place], copier: PageCopier) -> list[int]:
        """Checksum of each page, 0 where there is none."""
        self._numbers = [page for page, _ in places if page >= 0]
        checksum, pages = self._exported.checksum, self._pages
        return [checksum(page, tag, pages[page], copier) if page >= 0 else 0 for page, tag in places]

    def send(self, line: PageLine, copier: PageCopier) -> None:
        """The pages that were prepared last, in their order. Raises as PageLine.send_pages()."""
        line.send_pages(copier, self._pages, np.array(self._numbers, np.int64))


class StagedPages:
    """Outgoing pages that are copied before they are sent, so that their checksums are those of the
    copies."""

    def __init__(self, exported: ExportedMemory) -> None:
        self._exported = exported
        self.most = most_staged(exported.memory)
        self._count = 0

    @cached_property
    def _staging(self) -> NDArray[np.uint8]:
        """uint8 [most, page_bytes]."""
        return self._exported.memory.buffer(self.most)

    def prepare(self, places: Sequence[Place], copier: PageCopier) -> list[int] | None:
        """Checksum of each page, 0 where there is none. None where no page can be had now."""
        there = [index for index, (page, _) in enumerate(places) if page >= 0]
        checksums, self._count = [0] * len(places), len(there)
        if not there:
            return checksums
        rows = self._staging[: self._count]
        if not self._exported.memory.read([places[index][0] for index in there], rows):
            self._count = 0
            return None
        for index, row in zip(there, rows, strict=True):
            checksums[index] = self._exported.checksum(*places[index], row, copier)
        return checksums

    def send(self, line: PageLine, copier: PageCopier) -> None:
        """The pages that were prepared last, in their order. Raises as PageLine.send_pages()."""
        if self._count:
            line.send_pages(copier, self._staging, np.arange(self._count, dtype=np.int64))


Outgoing = PagesInPlace | StagedPages
"""Answers to the Finds of one reader, one after the other, by one thread."""


def outgoing(exported: ExportedMemory) -> Outgoing:
    pages = exported.memory.pages
    return StagedPages(exported) if pages is None else PagesInPlace(exported, pages)
