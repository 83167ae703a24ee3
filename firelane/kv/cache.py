"""The paged KV cache of all cache groups: block tables of sequences over one pool, with prefix reuse, and
the snapshots of recurrent states (states.py) that belong to it. A budget counts what a plan would take.

Life of a page:

    free -- reserve, grow --> held -- publish --> held, named -- advance, release --> free, still findable
     ^                                                                                       |
     +---------------- taken again, the least recently used first <--------------------------+

All groups have pages of the same size. A causal group keeps the pages of all tokens; a group of another span
returns those that lie wholly before what a later query may read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from firelane.contract import CAUSAL, Span
from firelane.contract.limits import longest_sequence, pages_needed
from firelane.kv.pool import STATES, BlockPool, IncomingPages, PageWatcher
from firelane.kv.prefix import BlockEvents, PageChangeLog, PageLog, PrefixChain
from firelane.kv.states import StateSnapshots
from firelane.kv.tables import RELEASED, BlockTables, PrefixHit, PrefixSearch
from firelane.wire.cache_events import CacheEvent

NewPage = tuple[int, int, int]
"""Group, index in the block table, page."""


MAX_TOKENS = 1 << 31


class KvCache:
    """Reserves, grows, publishes and releases the block tables of sequences; what begins with num_ or
    max_ changes nothing.

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
        self._pool = BlockPool(num_pages, range(len(spans)))
        self.search = PrefixSearch(self._pool, self.states, spans, block_size, is_enabled=prefix_caching)
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

    @property
    def num_incoming(self) -> int:
        """Pages and snapshots that have been taken so far for what comes from elsewhere, which only grows:
        what was planned with free ones before has to be planned anew."""
        return self.incoming.begun + self.states.incoming.begun

    def locate(self, group: int, name: bytes) -> tuple[int, int]:
        """The page and tag of a name, as BlockPool.locate tells; for the group STATES as
        StateSnapshots.locate does."""
        if group == STATES:
            return self.states.locate(name)
        return self._pool.locate(group, name) if group < len(self.spans) else (-1, 0)

    def keep_tags_in(self, memory: memoryview) -> None:
        """Keep the tags of pages in `memory`, as BlockPool.keep_tags_in does."""
        self._pool.keep_tags_in(memory)

    def keep_state_tags_in(self, memory: memoryview) -> None:
        """Keep the tags of states in `memory`, as StateSnapshots.keep_tags_in does."""
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
        """Forget a tenant's pages, as BlockPool.forget_tenant does; what its sequences compute from now on
        can be found again. Snapshots of recurrent states age by themselves: without pages they are of no
        use."""
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

    def _passed(self, tables: BlockTables, group: int, position: int) -> int:
        return min(self.search.first_block(group, position), len(tables.tables[group]))

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


class PageBudget:
    """Free pages as they will be once what is planned so far has been applied. Changes nothing in the cache;
    valid until the cache changes."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._free = cache.num_free
        self._set_aside = cache.num_free - cache.num_available
        self._users: dict[int, int] = {}
        """By page, how its number of users changes."""

    @property
    def available(self) -> int:
        """Free pages, less those set aside."""
        return self._free - self._set_aside

    def release(self, tables: BlockTables) -> None:
        """The sequence gives up all pages."""
        self._set_aside -= tables.set_aside
        for group in range(len(tables.tables)):
            held = tables.held(group)
            self._change_users(held, -1)
            self._free += sum(map(self._is_idle, held))

    def admit(self, num_tokens: int, hit: PrefixHit, headroom: int) -> bool:
        """Count an admission; False where fewer than `headroom` available pages would be left."""
        fresh, later = self._cache.num_to_admit(num_tokens, hit)
        idle = [page for pages in hit.pages for page in pages if self._is_idle(page)]
        if fresh + later + len(idle) + headroom > self.available:
            return False
        self._free -= fresh + len(idle)
        self._set_aside += later
        for pages in hit.pages:
            self._change_users(pages, 1)
        return True

    def cancel(self, num_tokens: int, hit: PrefixHit) -> None:
        """The opposite of `admit`."""
        fresh, later = self._cache.num_to_admit(num_tokens, hit)
        for pages in hit.pages:
            self._change_users(pages, -1)
        self._free += fresh + sum(self._is_idle(page) for pages in hit.pages for page in pages)
        self._set_aside -= later

    def take(self, pages: int, set_aside: int = 0) -> None:
        """Count pages that a sequence grows by, `set_aside` of which it may have from what is set aside."""
        self._free -= pages
        self._set_aside -= min(pages, set_aside)

    def set_aside(self, pages: int) -> None:
        """Keep more, or fewer, of the free pages from others."""
        self._set_aside += pages

    def give_back(self, pages: int) -> None:
        """Growth that is not going to happen."""
        self._free += pages

    def room(self, num_blocks: int, set_aside: int) -> int:
        """Tokens up to which a prefill can go that has pages for so many blocks."""
        pages = min(self._free, set_aside + max(0, self.available))
        return (num_blocks + pages // self._cache.num_limited) * self._cache.block_size

    def _change_users(self, pages: Iterable[int], change: int) -> None:
        for page in pages:
            self._users[page] = self._users.get(page, 0) + change

    def _is_idle(self, page: int) -> bool:
        return self._cache.num_users(page) + self._users.get(page, 0) == 0
