"""Names of prefixes, and the events by which others follow them.

The name of a block's content is a chain of hashes that starts from the tenant's salt and the cache's code.
Block i is named by the hash of the name of block i - 1 and its own token ids, so equal names mean equal
salts, equal codes and equal tokens from the first one on. The digest is long enough that no tenant can search
for a collision.
"""

from __future__ import annotations

from collections.abc import Container
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from firelane.wire.cache_events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    PageChanges,
    numbers_bytes,
)
from firelane.wire.page_names import PAGE_TOKENS, more_page_names

DIGEST_BYTES = 32
TENANT_BYTES = 16


def tenant_id(tenant: str) -> bytes:
    """The id under which pages of a tenant are accounted for, from its name: TENANT_BYTES bytes."""
    return blake2b(tenant.encode(), digest_size=TENANT_BYTES, person=b"firelane-tenant").digest()


class PrefixChain:
    """Names of the leading full blocks of one sequence; it only grows, and outlives preemption."""

    __slots__ = ("_block_size", "_images", "_names", "_pages", "_salt", "is_salted", "root", "tenant")

    def __init__(self, salt: bytes, block_size: int, code: str = "", tenant: str = "") -> None:
        """code: as StepLimits.kv_cache_code. tenant: whose pages these are; it is no part of their names.
        root: from which anyone could name blocks of this salt."""
        self.tenant = tenant_id(tenant)
        person = b"firelane-kv" + code.encode()
        self.root = blake2b(salt, digest_size=DIGEST_BYTES, person=person).digest()
        self.is_salted = bool(salt)
        self._block_size = block_size
        self._names: list[bytes] = []
        self._salt = salt
        self._pages: list[int] = []
        self._images: list[tuple[int, NDArray[np.int32]]] = []

    def have_image(self, start: int, words: NDArray[np.int32]) -> None:
        """Tokens from index `start` on are named by these words in place of their ids. Before any name is
        asked for."""
        assert not self._names, "blocks have names already"
        assert not self._pages, "pages have names already"
        self._images.append((start, words))

    @property
    def known(self) -> list[bytes]:
        """Names that have been asked for so far; do not change the list."""
        return self._names

    def names(self, tokens: NDArray[np.int32], num_blocks: int) -> list[bytes]:
        """Names of the first `num_blocks` blocks of `tokens` (int32, contiguous, at least that many tokens).

        The list belongs to the chain and may hold more names than asked for; do not change it.
        """
        names, size = self._names, self._block_size
        if num_blocks > len(names):
            name = names[-1] if names else self.root
            data = self._named(tokens, len(names) * size, num_blocks * size).tobytes()
            block_bytes = size * tokens.itemsize
            for start in range(0, len(data), block_bytes):
                name = blake2b(name + data[start : start + block_bytes], digest_size=DIGEST_BYTES).digest()
                names.append(name)
        return names

    def page_names(self, tokens: NDArray[np.int32], num_pages: int) -> list[int]:
        """Names of the first pages of `tokens`, by which gateways know them; of the list as in `names`."""
        if num_pages > len(self._pages):
            data = self._named(tokens, 0, num_pages * PAGE_TOKENS).astype("<i4", copy=False)
            more_page_names(self._pages, self._salt, data.data)
        return self._pages

    def _named(self, tokens: NDArray[np.int32], begin: int, end: int) -> NDArray[np.int32]:
        part = tokens[begin:end]
        if not self._images:
            return part
        part = part.copy()
        for start, words in self._images:
            first, last = max(start, begin), min(start + len(words), end)
            if first < last:
                part[first - begin : last - begin] = words[first - start : last - start]
        return part


NAME_BYTES = 8
"""Bytes of a block's name that others see: enough to tell blocks apart, and of no use to ask for a page."""
SALT_ID_BYTES = 16


class NameEvents:
    """The names of one pool's pages as they come and go. These here are of a cache that nobody follows."""

    def named(self, group: int, name: bytes) -> None:
        """Prompts find this page from now on."""

    def unnamed(self, group: int, name: bytes) -> None:
        """Its page is about to be given to somebody else."""

    def published(
        self, chain: PrefixChain, tokens: NDArray[np.int32], begin: int, end: int, *, is_first: bool
    ) -> None:
        """A sequence of these tokens has full blocks from `begin` to `end`, all of which may have been named
        before. is_first: nothing was published of the sequence since its admission."""

    def take(self) -> list[CacheEvent]:
        """Events since the last call, in order."""
        return []


class BlockEvents(NameEvents):
    """NameEvents as blocks. Blocks are told by the pages of one cache group, that which keeps the most. A
    page that came from another engine is told once a sequence with its tokens goes on behind it. Begins
    with an empty cache."""

    def __init__(self, block_size: int, group: int = 0) -> None:
        self._block_size, self._group = block_size, group
        self._events: list[CacheEvent] = [BlocksCleared()]
        self._untold: set[bytes] = set()
        self._removed: list[int] = []

    def named(self, group: int, name: bytes) -> None:
        if group == self._group:
            self._untold.add(name)

    def unnamed(self, group: int, name: bytes) -> None:
        if group != self._group:
            return
        if name in self._untold:
            self._untold.remove(name)
        else:
            self._removed.append(number_of(name))

    def published(
        self, chain: PrefixChain, tokens: NDArray[np.int32], begin: int, end: int, *, is_first: bool
    ) -> None:
        if not self._untold:
            return
        names, begin = chain.names(tokens, end), 0 if is_first else begin
        while begin < end:
            if names[begin] not in self._untold:
                begin += 1
                continue
            stop = begin
            while stop < end and names[stop] in self._untold:
                self._untold.remove(names[stop])
                stop += 1
            self._close_removed()
            self._events.append(self._stored(chain, tokens, begin, stop))
            begin = stop

    def take(self) -> list[CacheEvent]:
        self._close_removed()
        events, self._events = self._events, []
        return events

    def _stored(self, chain: PrefixChain, tokens: NDArray[np.int32], begin: int, end: int) -> BlocksStored:
        names, size = chain.names(tokens, end), self._block_size
        return BlocksStored(
            names=[number_of(name) for name in names[begin:end]],
            parent=number_of(names[begin - 1]) if begin else None,
            tokens=tokens[begin * size : end * size].astype("<i4", copy=False).tobytes(),
            salt_id="" if begin else salt_id(chain),
        )

    def _close_removed(self) -> None:
        if self._removed:
            self._events.append(BlocksRemoved(self._removed))
            self._removed = []


def number_of(name: bytes) -> int:
    """A block's name as others see it."""
    return int.from_bytes(name[:NAME_BYTES], "little")


def salt_id(chain: PrefixChain) -> str:
    """A digest that says which chains start from one salt, and not from which; "" without a salt."""
    if not chain.is_salted:
        return ""
    return blake2b(chain.root, digest_size=SALT_ID_BYTES, person=b"firelane-salt-id").hexdigest()


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
