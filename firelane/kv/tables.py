"""The block tables of one sequence, and the cached prefix that it may begin with."""

from __future__ import annotations

from typing import NamedTuple

from firelane.contract import NO_SNAPSHOT
from firelane.kv.states import HeldSnapshots

RELEASED = -1
"""The entry of a page that went back to the pool because it lies behind the span of its group."""


class PrefixHit(NamedTuple):
    """The longest cached prefix of a sequence; valid until a page is next taken from the pool."""

    num_blocks: int
    pages: tuple[list[int], ...]
    """For each group, the pages of the last blocks of the prefix: as many as its span still needs."""
    snapshot: int = NO_SNAPSHOT
    """The snapshot of the recurrent state after the prefix, if there is one."""
    shared_blocks: int = 0
    """Length of the longest prefix whose pages are there, with or without a snapshot."""


class BlockTables:
    """The pages of one sequence, a table for each cache group. Made by KvCache.reserve, dead after
    KvCache.release, changed by KvCache alone."""

    __slots__ = (
        "cached_tokens",
        "first",
        "prefill_tokens",
        "published_blocks",
        "set_aside",
        "snapshots",
        "tables",
    )

    def __init__(
        self, hit: PrefixHit, cached_tokens: int, prefill_tokens: int, snapshots: HeldSnapshots
    ) -> None:
        self.first = [hit.num_blocks - len(pages) for pages in hit.pages]
        """For each group, its first block that is not released."""
        self.tables = [[RELEASED] * first + pages for first, pages in zip(self.first, hit.pages, strict=True)]
        """For each group, the page of each block of tokens, in order."""
        self.cached_tokens = cached_tokens
        self.published_blocks = hit.num_blocks
        """Leading full blocks that the prefix cache knows."""
        self.prefill_tokens = prefill_tokens
        """Tokens for which pages are set aside; 0 once all groups have them."""
        self.snapshots = snapshots
        """Snapshots of recurrent states, held by the sequence."""
        self.set_aside = 0
        """Free pages that are kept for the rest of the prefill."""

    @property
    def num_held(self) -> int:
        """Pages that are held, in all groups."""
        return sum(map(len, self.tables)) - sum(self.first)

    @property
    def num_blocks(self) -> int:
        """Leading blocks of tokens that have, or had, a page in every group."""
        return min(map(len, self.tables))

    def held(self, group: int) -> list[int]:
        """Pages of the blocks from first[group] on."""
        return self.tables[group][self.first[group] :]
