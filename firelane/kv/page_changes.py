"""Pages of a prefix cache as gateways name them, for those who send requests where their prefixes are."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from firelane.kv.prefix import PrefixChain
from firelane.wire.cache_events import PageChanges, numbers_bytes
from firelane.wire.page_names import PAGE_TOKENS


class PageLog:
    """The pages of one cache, as blocks are published and given up. This one is of a cache without
    prefixes."""

    def published(
        self, chain: PrefixChain, tokens: NDArray[np.int32], begin: int, end: int, *, is_first: bool
    ) -> None:
        """Note published pages, as NameEvents.published does."""

    def unnamed(self, group: int, name: bytes) -> None:
        """Note a page that lost its name, as NameEvents.unnamed does."""

    def follow(self) -> None:
        """Somebody wants to know: all pages next, and changes from then on."""

    def take(self) -> PageChanges | None:
        """Changes since the last call; None where there are none, or nobody wants to know."""
        return None


class PageChangeLog(PageLog):
    """A page is there while the last block of it is, in the cache group that keeps the most: blocks before
    it are given up later. Pages that end within a block are left out."""

    def __init__(self, block_size: int, group: int, named: Container[bytes]) -> None:
        """named: blocks that prompts find at present, of that group."""
        self._block_size, self._group, self._named = block_size, group, named
        self._pages: dict[bytes, int] = {}  # by the names of their last blocks
        self._stored: dict[int, None] = {}
        self._removed: list[int] = []
        self._is_followed = self._is_whole = False

    def published(
        self, chain: PrefixChain, tokens: NDArray[np.int32], begin: int, end: int, *, is_first: bool
    ) -> None:
        size = self._block_size
        first, last = 0 if is_first else begin * size // PAGE_TOKENS, end * size // PAGE_TOKENS
        if first == last:
            return
        blocks, pages = chain.names(tokens, end), chain.page_names(tokens, last)
        for i in range(first, last):
            at, rest = divmod((i + 1) * PAGE_TOKENS, size)
            block = blocks[at - 1]
            if not rest and block not in self._pages and block in self._named:
                self._pages[block] = pages[i]
                if self._is_followed:
                    self._stored[pages[i]] = None

    def unnamed(self, group: int, name: bytes) -> None:
        page = self._pages.pop(name, None) if group == self._group else None
        if page is None or not self._is_followed:
            return
        if page in self._stored:
            del self._stored[page]
        else:
            self._removed.append(page)

    def follow(self) -> None:
        self._is_followed = self._is_whole = True

    def take(self) -> PageChanges | None:
        if not (self._stored or self._removed or self._is_whole):
            return None
        stored = self._pages.values() if self._is_whole else self._stored
        removed = () if self._is_whole else self._removed
        frame = PageChanges(numbers_bytes(stored), numbers_bytes(removed), is_whole=self._is_whole)
        self._stored, self._removed, self._is_whole = {}, [], False
        return frame
