"""Changes of an engine's prefix cache, for whoever sends requests where their prefixes are."""

from __future__ import annotations

import msgspec


class BlocksStored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """Blocks of tokens, one behind the other, that later prompts find from now on. names: 64 bits of each
    block's name. parent: that of the block before the first one; None where there is none. tokens: of all
    blocks, little-endian int32. salt_id: a digest of the salt that the first of them starts from, where there
    is one and the chain begins here; else ""."""

    names: list[int]
    parent: int | None
    tokens: bytes
    salt_id: str = ""


class BlocksRemoved(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """Blocks that no prompt finds any more: their pages are given to others."""

    names: list[int]


class BlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared"):
    """The cache is empty."""


CacheEvent = BlocksStored | BlocksRemoved | BlocksCleared


class CacheEvents(msgspec.Struct, frozen=True, array_like=True, tag="cache"):
    """All changes since the frame before, in their order. A block is told when its page can be read, and told
    to be removed before the page is written to again."""

    events: list[CacheEvent]
