"""The pages of a KV cache as bytes, for whoever copies them in and out between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class PageMemory(Protocol):
    """The memory of an executor's pages, which the executor owns. A page that no step in flight reads or
    writes may be read and written by anyone, from any thread. Calls return when the bytes are there."""

    @property
    def num_pages(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def layout_id(self) -> str:
        """Equal where pages can be copied between two executors of one model; which model's they are it does
        not say."""
        ...

    @property
    def pages(self) -> NDArray[np.uint8] | None:
        """uint8 [num_pages, page_bytes], where all pages lie in one array of this process; None where they
        are read and written by copies alone."""
        ...

    @property
    def fd(self) -> int:
        """A file in memory that another process can map, where page i begins at byte i * page_bytes; -1 where
        there is none."""
        ...

    def buffer(self, count: int) -> NDArray[np.uint8]:
        """Memory for so many pages, uint8 [count, page_bytes], that copies to and from are fastest; the
        caller's."""
        ...

    def read(self, pages: Sequence[int], into: NDArray[np.uint8], first: int = 0) -> bool:
        """Copy these pages to the rows of `into`, uint8 [len(pages), at most page_bytes]: their bytes from
        `first` on. False where they cannot be had: in standby, or of a device that has failed, which the next
        step tells."""
        ...

    def write(self, pages: Sequence[int], source: NDArray[np.uint8], first: int = 0) -> bool:
        """The other way; as `read`."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class HostPages:
    """A PageMemory of pages in one array of this process."""

    pages: NDArray[np.uint8]
    layout_id: str
    fd: int = -1

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @property
    def page_bytes(self) -> int:
        return self.pages.shape[1]

    def buffer(self, count: int) -> NDArray[np.uint8]:
        return np.empty((count, self.page_bytes), np.uint8)

    def read(self, pages: Sequence[int], into: NDArray[np.uint8], first: int = 0) -> bool:
        for page, row in zip(pages, into, strict=True):
            np.copyto(row, self.pages[page, first : first + row.size])
        return True

    def write(self, pages: Sequence[int], source: NDArray[np.uint8], first: int = 0) -> bool:
        for page, row in zip(pages, source, strict=True):
            np.copyto(self.pages[page, first : first + row.size], row)
        return True
