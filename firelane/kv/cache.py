"""The paged KV cache of all cache groups: block tables of sequences over one pool, with prefix reuse, and
the snapshots of recurrent states (states.py) that belong to it.

Life of a page:

    free -- reserve, grow --> held -- publish --> held, named -- advance, release --> free, still findable
     ^                                                                                       |
     +---------------- taken again, the least recently used first <--------------------------+

All groups have pages of the same size. A causal group keeps the pages of all tokens; a group of another span
returns those that lie wholly before what a later query may read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from firelane.contract import CAUSAL, NO_SNAPSHOT, Span, kept_from
from firelane.contract.limits import longest_sequence, pages_needed
from firelane.kv.events import BlockEvents
from firelane.kv.incoming import STATES, IncomingPages, WantedPage
from firelane.kv.page_changes import PageChangeLog, PageLog
from firelane.kv.pool import UNKNOWN, BlockPool, PageWatcher
from firelane.kv.prefix import PrefixChain
from firelane.kv.states import StateSnapshots
from firelane.kv.tables import RELEASED, BlockTables, PrefixHit
from firelane.wire.cache_events import CacheEvent

NewPage = tuple[int, int, int]
"""Group, index in the block table, page."""


MAX_TOKENS = 1 << 31
ELSEWHERE = 1 << 40
"""In place of a page of this pool."""


class KvCache:
    """Reserves, grows, publishes and releases the block tables of sequences; `lookup` and what begins with
    num_ or max_ changes nothing.

    Only full blocks whose step has ended are published, and a sequence writes to none but its own last
    blocks: a published page never changes until it is taken again.
    """

    def __init__(
        self,
        num_pages: int,
        block_size: int,
        spans: tuple[Span, ...] = (CAUSAL,),
        prefix_caching: bool = True,
        *,
        chunk_tokens: int = 1,
        states: StateSnapshots | None = None,
        code: str = "",
    ) -> None:
        """spans: one for each group. chunk_tokens: the most that one step computes of a sequence. states:
        snapshots of recurrent states; None: the program keeps no such state. code: as
        StepLimits.kv_cache_code."""
        self.num_pages = num_pages
        self.block_size = block_size
        self.spans = spans
        self._code = code
        self._chunk_tokens = chunk_tokens
        self.states = states or StateSnapshots(block_size=block_size, is_kept=False)
        self._prefix_caching = prefix_caching
        self._pool = BlockPool(num_pages, len(spans))
        self.incoming = IncomingPages(self._pool)
        self._set_aside = 0
        self._causal = [group for group, span in enumerate(spans) if span == CAUSAL]
        if prefix_caching:
            group = (self._causal or [0])[0]
            self._pool.pages = PageChangeLog(block_size, group, self._pool.names(group))
        self._limited = [group for group, span in enumerate(spans) if span != CAUSAL]
        self.num_limited = len(self._limited)
        """Groups with a span that is not causal."""
        self.max_tokens = longest_sequence(spans, num_pages, chunk_tokens, block_size, at_most=MAX_TOKENS)
        """The length of a sequence that has the pool for itself."""
        self.no_hit = PrefixHit(0, tuple([] for _ in spans))

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_available(self) -> int:
        """Free pages, less those set aside."""
        return self._pool.num_free - self._set_aside

    @property
    def num_used_pages(self) -> int:
        return self.num_pages - self._pool.num_free

    def num_users(self, page: int) -> int:
        return self._pool.references(page)

    def chain(self, salt: bytes, tenant: str = "") -> PrefixChain:
        return PrefixChain(salt, self.block_size, self._code, tenant)

    def watch(self, watcher: PageWatcher) -> None:
        """Tell it of pages, and as pages of the group STATES of snapshots, from now on."""
        self._pool.watcher = watcher
        self.states.watch(watcher)

    def lookup(self, chain: PrefixChain, tokens: NDArray[np.int32], reusable_tokens: int) -> PrefixHit:
        """The longest cached prefix of at most `reusable_tokens` tokens; never all, since the last token must
        be computed. A prefix of n tokens is cached where each group has the pages that position n may read
        and, with recurrent state, there is a snapshot of exactly n tokens.
        """
        limit = min(reusable_tokens, len(tokens) - 1) // self.block_size if self._prefix_caching else 0
        if limit <= 0:
            return self.no_hit
        names = chain.names(tokens, limit)
        pages: list[list[int]] = [[] for _ in self.spans]
        for group in self._causal:
            pages[group] = self._pool.find(group, names, limit)
            limit = len(pages[group])
        for group in self._limited:
            pages[group] = self._pool.find_each(group, names, limit)
        is_hit = self._hits(pages, limit)
        blocks = shared = _last(is_hit)
        if self.states.is_kept:
            blocks = _last(is_hit & self.states.known(names, limit))
        firsts = [self._first_block(group, blocks * self.block_size) for group in range(len(self.spans))]
        held = tuple(p[first:blocks] for p, first in zip(pages, firsts, strict=True))
        snapshot = self.states.find(names[blocks - 1]) if blocks else NO_SNAPSHOT
        return PrefixHit(blocks, held, snapshot, shared)

    def wanted(self, chain: PrefixChain, tokens: NDArray[np.int32], reusable_tokens: int) -> list[WantedPage]:
        """Pages that are missing for the longest prefix that a sequence could begin with."""
        blocks = min(reusable_tokens, len(tokens) - 1) // self.block_size if self._prefix_caching else 0
        if blocks <= 0 or (self.states.is_kept and not self.states.count):
            return []
        names, found = chain.names(tokens, blocks), list[WantedPage]()
        for group in range(len(self.spans)):
            for index in range(self._first_block(group, blocks * self.block_size), blocks):
                if self._pool.locate(group, names[index])[0] < 0:
                    found.append(WantedPage(group, names[index], chain.tenant))
        return found

    def wanted_states(
        self, chain: PrefixChain, tokens: NDArray[np.int32], reusable_tokens: int
    ) -> list[bytes]:
        """Names of snapshots, any of which would let a sequence begin with more than it can now, the longest
        prefix first; none of a model without recurrent state."""
        if not (self.states.is_kept and self._prefix_caching):
            return []
        blocks = min(reusable_tokens, len(tokens) - 1) // self.block_size
        hit = self.lookup(chain, tokens, reusable_tokens).num_blocks
        return chain.names(tokens, max(blocks, 0))[hit : max(blocks, hit)][::-1]

    @property
    def num_incoming(self) -> int:
        """Pages and snapshots that have been taken so far for what comes from elsewhere, which only grows:
        what was planned with free ones before has to be planned anew."""
        return self.incoming.begun + self.states.incoming.begun

    def restorable(
        self,
        chain: PrefixChain,
        tokens: NDArray[np.int32],
        reusable_tokens: int,
        holds: Callable[[tuple[int, bytes]], bool],
    ) -> list[WantedPage]:
        """Pages that are missing for the longest prefix that a sequence could begin with if all came that
        `holds` says are elsewhere (by group and name); in order, those of a block together. Before them, with
        recurrent state, the snapshot of that prefix if it is missing, by the group STATES. The others of that
        prefix are given out after all other free pages."""
        limit = min(reusable_tokens, len(tokens) - 1) // self.block_size if self._prefix_caching else 0
        if limit <= 0 or (self.states.is_kept and not self.states.count):
            return []
        names = chain.names(tokens, limit)
        pages: list[list[int]] = [[] for _ in self.spans]
        for group in self._causal:
            known = self._here_or_held(group, names, limit, holds)
            pages[group] = known[: (*known, UNKNOWN).index(UNKNOWN)]
            limit = len(pages[group])
        for group in self._limited:
            pages[group] = self._here_or_held(group, names, limit, holds)
        blocks, is_state_here = self._begins_at(names, self._hits(pages, limit), holds)
        firsts = [self._first_block(group, blocks * self.block_size) for group in range(len(self.spans))]
        for group, first in enumerate(firsts):
            self._pool.refresh([page for page in pages[group][first:blocks] if page != ELSEWHERE])
        state = [] if is_state_here else [WantedPage(STATES, names[blocks - 1], chain.tenant)]
        return state + [
            WantedPage(group, names[index], chain.tenant)
            for index in range(blocks)
            for group, first in enumerate(firsts)
            if index >= first and pages[group][index] == ELSEWHERE
        ]

    def locate(self, group: int, name: bytes) -> tuple[int, int]:
        """As BlockPool.locate; of the group STATES, as StateSnapshots.locate."""
        if group == STATES:
            return self.states.locate(name)
        return self._pool.locate(group, name) if group < len(self.spans) else (-1, 0)

    def keep_tags_in(self, memory: memoryview) -> None:
        """As BlockPool.keep_tags_in."""
        self._pool.keep_tags_in(memory)

    def keep_state_tags_in(self, memory: memoryview) -> None:
        """As StateSnapshots.keep_tags_in."""
        self.states.keep_tags_in(memory)

    def tell_events(self) -> None:
        """From now on the cache remembers what it stores and gives up, for take_events. Nothing has happened
        to it yet."""
        if self._prefix_caching:
            self._pool.events = BlockEvents(self.block_size, (self._causal or [0])[0])

    def take_events(self) -> list[CacheEvent]:
        """Events since the last call, by the blocks of one group; none unless they were asked for."""
        return self._pool.events.take()

    @property
    def pages(self) -> PageLog:
        """The pages of the prefix cache, for gateways."""
        return self._pool.pages

    def num_to_admit(self, num_tokens: int, hit: PrefixHit) -> tuple[int, int]:
        """Pages that a sequence takes on admission, and pages to set aside for it, beside those of the hit.

        Causal groups get the pages of all tokens at once. For the others, what they hold at most during the
        prefill is set aside: one chunk is in flight while the next is planned. A small pool makes do with
        shorter chunks.
        """
        causal = len(self._causal) * -(-num_tokens // self.block_size)
        fresh = causal - len(self._causal) * hit.num_blocks
        if not self._limited:
            return fresh, 0
        limited = self._pages_needed(self._limited, num_tokens, 2 * self._chunk_tokens)
        shared = sum(len(hit.pages[group]) for group in self._limited)
        return fresh, max(0, min(limited, self.num_pages - causal) - shared)

    def share(self, num_tokens: int, hit: PrefixHit, wanted: tuple[int, ...] = ()) -> BlockTables:
        """The tables of a sequence of `num_tokens` tokens that begins with `hit`, and holds no other page
        yet. wanted: lengths at which its prefill leaves snapshots."""
        held = self.states.begin(hit.snapshot, wanted)
        tables = BlockTables(hit, hit.num_blocks * self.block_size, num_tokens, held)
        for pages in hit.pages:
            self._pool.share(pages)
        return tables

    def reserve(self, tables: BlockTables, hit: PrefixHit) -> None:
        """Take and set aside the other pages of an admission. Where several are admitted, all of them share
        before the first one reserves: a page that is taken may be any that nobody uses."""
        tokens = tables.prefill_tokens
        _, later = self.num_to_admit(tokens, hit)
        for group in self._causal:
            self._extend(tables.tables[group], tokens)
        self._set_aside_rest(tables, later)

    def num_to_grow(self, tables: BlockTables, num_tokens: int) -> int:
        """Pages that are missing for so many tokens."""
        blocks = -(-num_tokens // self.block_size)
        return sum(max(0, blocks - len(table)) for table in tables.tables)

    def grow(self, tables: BlockTables, num_tokens: int) -> list[NewPage]:
        """Take the pages that are missing for so many tokens: first those set aside."""
        new: list[NewPage] = []
        blocks = -(-num_tokens // self.block_size)
        for group, table in enumerate(tables.tables):
            for index in range(len(table), blocks):
                page = self._pool.take()
                table.append(page)
                new.append((group, index, page))
        if tables.prefill_tokens:
            self._set_aside_rest(tables, tables.set_aside - len(new))
        return new

    def grow_each(self, all_tables: Collection[BlockTables]) -> list[list[int]]:
        """Take one more page in every group for each of these sequences, none of which is in its prefill.
        Returns the pages by group."""
        new: list[list[int]] = []
        for group in range(len(self.spans)):
            pages = self._pool.take_many(len(all_tables))
            for tables, page in zip(all_tables, pages, strict=True):
                tables.tables[group].append(page)
            new.append(pages)
        return new

    def num_passed(self, tables: BlockTables, position: int) -> int:
        """Pages that `advance` would return."""
        return sum(max(0, self._passed(tables, g, position) - tables.first[g]) for g in self._limited)

    def advance(self, tables: BlockTables, position: int) -> None:
        """Return the pages that no query at `position`, or later, reads. They stay findable."""
        for group in self._limited:
            table, first = tables.tables[group], tables.first[group]
            passed = self._passed(tables, group, position)
            if passed > first:
                self._pool.release(table[first:passed])
                table[first:passed] = [RELEASED] * (passed - first)
                tables.first[group] = passed
                if tables.prefill_tokens:
                    self._set_aside_rest(tables, tables.set_aside + passed - first)

    def publish(
        self, tables: BlockTables, chain: PrefixChain, tokens: NDArray[np.int32], num_blocks: int
    ) -> None:
        """Let later prompts find the first `num_blocks` blocks: all of their tokens have been computed."""
        if self._prefix_caching:
            names, before, publish = (
                chain.names(tokens, num_blocks),
                tables.published_blocks,
                self._pool.publish,
            )
            for group, table in enumerate(tables.tables):
                first = tables.first[group]
                for index in range(before if before > first else first, num_blocks):
                    publish(table[index], group, names[index], chain.tenant)
            is_first = before * self.block_size == tables.cached_tokens
            self._pool.events.published(chain, tokens, before, num_blocks, is_first=is_first)
            self._pool.pages.published(chain, tokens, before, num_blocks, is_first=is_first)
        tables.published_blocks = num_blocks

    def release(self, tables: BlockTables) -> None:
        for group, table in enumerate(tables.tables):
            self._pool.release(tables.held(group))
            tables.first[group] = 0
            table.clear()
        self.states.release(tables.snapshots)
        self._set_aside -= tables.set_aside
        tables.set_aside = tables.prefill_tokens = 0

    def forget(self) -> None:
        """All that later prompts could find: the memory behind it is given back."""
        self._pool.forget()
        self.states.forget()

    def forget_tenant(self, tenant: bytes) -> int:
        """As BlockPool.forget_tenant; what its sequences compute from now on can be found again. Snapshots of
        recurrent states age by themselves: without pages they are of no use."""
        return self._pool.forget_tenant(tenant)

    def check_integrity(self, all_tables: Iterable[BlockTables]) -> None:
        """Raise AssertionError unless the pool is sound and `all_tables` are exactly its users."""
        self._pool.check_integrity()
        running = list(all_tables)
        self.states.check_integrity(tables.snapshots for tables in running)
        expected, set_aside = [0] * self.num_pages, 0
        for tables in running:
            held = [page for group in range(len(self.spans)) for page in tables.held(group)]
            assert len(set(held)) == len(held) == tables.num_held, "a sequence holds a page twice"
            assert RELEASED not in held, "a page is released and held"
            assert tables.set_aside == 0 or tables.prefill_tokens, "pages are set aside after the prefill"
            set_aside += tables.set_aside
            for page in held:
                expected[page] += 1
        for page in self.incoming.pages():
            expected[page] += 1
        actual = [self._pool.references(page) for page in range(self.num_pages)]
        assert actual == expected, "reference counts differ from the block tables: leaked or freed too early"
        assert self._set_aside == set_aside, "pages set aside are miscounted"

    def _here_or_held(
        self, group: int, names: list[bytes], limit: int, holds: Callable[[tuple[int, bytes]], bool]
    ) -> list[int]:
        """The page of each of names[:limit], ELSEWHERE, or UNKNOWN."""
        here = zip(self._pool.find_each(group, names, limit), names, strict=False)
        return [p if p >= 0 else ELSEWHERE if holds((group, name)) else UNKNOWN for p, name in here]

    def _begins_at(
        self, names: list[bytes], is_hit: NDArray[np.bool_], holds: Callable[[tuple[int, bytes]], bool]
    ) -> tuple[int, bool]:
        """The most leading blocks behind which a sequence could begin, and whether the state that this needs,
        if any, is here."""
        for blocks in is_hit.nonzero()[0][::-1].tolist():
            is_here = not (self.states.is_kept and blocks) or self.states.find(names[blocks - 1]) >= 0
            if is_here or holds((STATES, names[blocks - 1])):
                return blocks, is_here
        return 0, True

    def _hits(self, pages: list[list[int]], limit: int) -> NDArray[np.bool_]:
        """By number of leading blocks, up to `limit`: each group has the pages that what follows may read."""
        blocks = np.arange(limit + 1)
        is_hit = np.ones(limit + 1, np.bool_)
        for group in self._limited:
            known = np.array([0, *accumulate(page >= 0 for page in pages[group])])[: limit + 1]
            first = np.array([self._first_block(group, n * self.block_size) for n in range(limit + 1)])
            is_hit &= known - known[first] == blocks - first
        return is_hit

    def _first_block(self, group: int, position: int) -> int:
        """Index of the first block that a query at `position`, or any later one, may still read."""
        return kept_from(self.spans[group], position) // self.block_size

    def _passed(self, tables: BlockTables, group: int, position: int) -> int:
        return min(self._first_block(group, position), len(tables.tables[group]))

    def _extend(self, table: list[int], num_tokens: int) -> None:
        table += self._pool.take_many(-(-num_tokens // self.block_size) - len(table))

    def _set_aside_rest(self, tables: BlockTables, pages: int) -> None:
        """Nothing more once all groups have pages for the whole prefill."""
        if tables.num_blocks * self.block_size >= tables.prefill_tokens:
            tables.prefill_tokens = pages = 0
        self._set_aside += max(0, pages) - tables.set_aside
        tables.set_aside = max(0, pages)

    def _pages_needed(self, groups: Iterable[int], num_tokens: int, chunk: int) -> int:
        return sum(pages_needed(self.spans[g], num_tokens, chunk, self.block_size) for g in groups)


def _last(is_hit: NDArray[np.bool_]) -> int:
    return int(is_hit.nonzero()[0][-1])
