"""Events of the prefix cache for whoever follows it, and those of a cache that nobody follows."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from firelane.kv.prefix import PrefixChain
from firelane.wire.cache_events import BlocksCleared, BlocksRemoved, BlocksStored, CacheEvent

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
