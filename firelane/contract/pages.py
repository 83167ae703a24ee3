"""The pages of a KV cache as bytes, for whoever copies them in and out between steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class PageMemory:
    """The memory of an executor's pages, uint8 [num_pages, page_bytes], which the executor owns. A page that
    no step in flight reads or writes may be read and written by anyone, from any thread.

    layout_id: equal where pages can be copied between two executors of one model; which model's they are it
    does not say. fd: a file in memory that another process can map, where page i begins at byte
    i * page_bytes; -1 where the pages are private.
    """

    pages: NDArray[np.uint8]
    layout_id: str
    fd: int = -1

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @property
    def page_bytes(self) -> int:
        return self.pages.shape[1]
