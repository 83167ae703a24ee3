"""The block tables of a sequence, and the search for the beginning of its prompt: what of that is in the KV
cache, and what could be brought there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import CAUSAL, NO_SNAPSHOT, Span, kept_from
from firelane.kv.pool import STATES, UNKNOWN, BlockPool, WantedPage
from firelane.kv.prefix import PrefixChain
from firelane.kv.states import HeldSnapshots, StateSnapshots

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


ELSEWHERE = 1 << 40
"""In place of a page of this pool."""
Holds = Callable[[tuple[int, bytes]], bool]
"""Whether a page is elsewhere, by group and name; of the group STATES: a snapshot."""


class PrefixSearch:
    """The longest prefixes of prompts, by the names of their blocks. Changes nothing but the order in which
    free pages are given out (`restorable`)."""

    def __init__(
        self,
        pool: BlockPool,
        states: StateSnapshots,
        spans: tuple[Span, ...],
        block_size: int,
        *,
        is_enabled: bool,
    ) -> None:
        """spans: one for each group of the pool. is_enabled: False = nothing is ever found."""
        self._pool, self._states, self._spans = pool, states, spans
        self._block_size, self._is_enabled = block_size, is_enabled
        self._causal = [group for group, span in enumerate(spans) if span == CAUSAL]
        self._limited = [group for group, span in enumerate(spans) if span != CAUSAL]
        self.no_hit = PrefixHit(0, tuple([] for _ in spans))

    def lookup(self, chain: PrefixChain, tokens: NDArray[np.int32], reusable_tokens: int) -> PrefixHit:
        """The longest cached prefix of at most `reusable_tokens` tokens; never all, since the last token must
        be computed. A prefix of n tokens is cached where each group has the pages that position n may read
        and, with recurrent state, there is a snapshot of exactly n tokens.
        """
        limit = min(reusable_tokens, len(tokens) - 1) // self._block_size if self._is_enabled else 0
        if limit <= 0:
            return self.no_hit
        names = chain.names(tokens, limit)
        pages: list[list[int]] = [[] for _ in self._spans]
        for group in self._causal:
            pages[group] = self._pool.find(group, names, limit)
            limit = len(pages[group])
        for group in self._limited:
            pages[group] = self._pool.find_each(group, names, limit)
        is_hit = self._hits(pages, limit)
        blocks = shared = _last(is_hit)
        if self._states.is_kept:
            blocks = _last(is_hit & self._states.known(names, limit))
        firsts = [self.first_block(group, blocks * self._block_size) for group in range(len(self._spans))]
        held = tuple(p[first:blocks] for p, first in zip(pages, firsts, strict=True))
        snapshot = self._states.find(names[blocks - 1]) if blocks else NO_SNAPSHOT
        return PrefixHit(blocks, held, snapshot, shared)

    def wanted(self, chain: PrefixChain, tokens: NDArray[np.int32], reusable_tokens: int) -> list[WantedPage]:
        """Pages that are missing for the longest prefix that a sequence could begin with."""
        blocks = min(reusable_tokens, len(tokens) - 1) // self._block_size if self._is_enabled else 0
        if blocks <= 0 or (self._states.is_kept and not self._states.count):
            return []
        names, found = chain.names(tokens, blocks), list[WantedPage]()
        for group in range(len(self._spans)):
            for index in range(self.first_block(group, blocks * self._block_size), blocks):
                if self._pool.locate(group, names[index])[0] < 0:
                    found.append(WantedPage(group, names[index], chain.tenant))
        return found

    def wanted_states(
        self, chain: PrefixChain, tokens: NDArray[np.int32], reusable_tokens: int
    ) -> list[bytes]:
        """Names of snapshots, any of which would let a sequence begin with more than it can now, the longest
        prefix first; none of a model without recurrent state."""
        if not (self._states.is_kept and self._is_enabled):
            return []
        blocks = min(reusable_tokens, len(tokens) - 1) // self._block_size
        hit = self.lookup(chain, tokens, reusable_tokens).num_blocks
        return chain.names(tokens, max(blocks, 0))[hit : max(blocks, hit)][::-1]

    def restorable(
        self,
        chain: PrefixChain,
        tokens: NDArray[np.int32],
        reusable_tokens: int,
        holds: Holds,
    ) -> list[WantedPage]:
        """Pages that are missing for the longest prefix that a sequence could begin with if all came that
        `holds` says are elsewhere (by group and name); in order, those of a block together. Before them, with
        recurrent state, the snapshot of that prefix if it is missing, by the group STATES. The others of that
        prefix are given out after all other free pages."""
        limit = min(reusable_tokens, len(tokens) - 1) // self._block_size if self._is_enabled else 0
        if limit <= 0 or (self._states.is_kept and not self._states.count):
            return []
        names = chain.names(tokens, limit)
        pages: list[list[int]] = [[] for _ in self._spans]
        for group in self._causal:
            known = self._here_or_held(group, names, limit, holds)
            pages[group] = known[: (*known, UNKNOWN).index(UNKNOWN)]
            limit = len(pages[group])
        for group in self._limited:
            pages[group] = self._here_or_held(group, names, limit, holds)
        blocks, is_state_here = self._begins_at(names, self._hits(pages, limit), holds)
        firsts = [self.first_block(group, blocks * self._block_size) for group in range(len(self._spans))]
        for group, first in enumerate(firsts):
            self._pool.refresh([page for page in pages[group][first:blocks] if page != ELSEWHERE])
        state = [] if is_state_here else [WantedPage(STATES, names[blocks - 1], chain.tenant)]
        return state + [
            WantedPage(group, names[index], chain.tenant)
            for index in range(blocks)
            for group, first in enumerate(firsts)
            if index >= first and pages[group][index] == ELSEWHERE
        ]

    def _here_or_held(self, group: int, names: list[bytes], limit: int, holds: Holds) -> list[int]:
        """The page of each of names[:limit], ELSEWHERE, or UNKNOWN."""
        here = zip(self._pool.find_each(group, names, limit), names, strict=False)
        return [p if p >= 0 else ELSEWHERE if holds((group, name)) else UNKNOWN for p, name in here]

    def _begins_at(self, names: list[bytes], is_hit: NDArray[np.bool_], holds: Holds) -> tuple[int, bool]:
        """The most leading blocks behind which a sequence could begin, and whether the state that this needs,
        if any, is here."""
        for blocks in is_hit.nonzero()[0][::-1].tolist():
            is_here = not (self._states.is_kept and blocks) or self._states.find(names[blocks - 1]) >= 0
            if is_here or holds((STATES, names[blocks - 1])):
                return blocks, is_here
        return 0, True

    def _hits(self, pages: list[list[int]], limit: int) -> NDArray[np.bool_]:
        """By number of leading blocks, up to `limit`: each group has the pages that what follows may read."""
        blocks = np.arange(limit + 1)
        is_hit = np.ones(limit + 1, np.bool_)
        for group in self._limited:
            known = np.array([0, *accumulate(page >= 0 for page in pages[group])])[: limit + 1]
            first = np.array([self.first_block(group, n * self._block_size) for n in range(limit + 1)])
            is_hit &= known - known[first] == blocks - first
        return is_hit

    def first_block(self, group: int, position: int) -> int:
        """Index of the first block that a query at `position`, or any later one, may still read."""
        return kept_from(self._spans[group], position) // self._block_size


def _last(is_hit: NDArray[np.bool_]) -> int:
    return int(is_hit.nonzero()[0][-1])
