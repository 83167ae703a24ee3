"""Changes of an engine's prefix cache, for whoever sends requests where their prefixes are."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

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


class PageChanges(msgspec.Struct, frozen=True, array_like=True, tag="pages"):
    """Changes of an engine's prefix cache in a gateway's terms (wire.page_names), for those that sent
    TellPages: pages that it has got, and before them those that it has given up. is_whole: it has no others
    than those stored. Names lie one behind the other, as numbers of 8 bytes, little-endian."""

    stored: bytes
    removed: bytes
    is_whole: bool = False


def numbers_bytes(numbers: Iterable[int]) -> bytes:
    """Numbers of 64 bits, as in PageChanges."""
    made = array("Q", numbers)
    if sys.byteorder == "big":
        made.byteswap()
    return made.tobytes()


def numbers_of(data: bytes) -> list[int]:
    """The inverse of numbers_bytes; of an odd end nothing is left."""
    made = array("Q", data[: len(data) // 8 * 8])
    if sys.byteorder == "big":
        made.byteswap()
    return made.tolist()
