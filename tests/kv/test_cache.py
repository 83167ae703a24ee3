from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, Chunk, Window, kept_from
from firelane.kv import KvCache, PageBudget, PrefixChain


def tokens(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


def fill(kv: KvCache, salt: bytes, prompt: np.ndarray):
    """A sequence that has computed all its full blocks."""
    chain = kv.chain(salt)
    tables = reserve(kv, chain, prompt, len(prompt))
    assert tables is not None
    kv.publish(tables, chain, prompt, len(prompt) // kv.block_size)
    return tables


def reserve(kv: KvCache, chain: PrefixChain, prompt: np.ndarray, reusable_tokens: int):
    """Reserve pages as an admission does it; None where there is no room."""
    hit = kv.search.lookup(chain, prompt, reusable_tokens)
    if not PageBudget(kv).admit(len(prompt), hit, headroom=0):
        return None
    tables = kv.share(len(prompt), hit)
    kv.reserve(tables, hit)
    return tables


def test_prefix_is_found_up_to_the_first_difference():
    kv = KvCache(16, 4)
    first = fill(kv, b"", tokens(12))
    other = np.concatenate([tokens(6), tokens(6, 100)])
    second = reserve(kv, kv.chain(b""), other, 12)
    assert second is not None
    assert second.cached_tokens == 4
    assert second.held(0)[0] == first.held(0)[0]
    assert not set(second.held(0)[1:]) & set(first.held(0))
    kv.check_integrity([first, second])


@pytest.mark.parametrize("length", [8, 9, 11])
def test_the_last_token_is_always_computed(length):
    kv = KvCache(16, 4)
    fill(kv, b"", tokens(12))
    again = reserve(kv, kv.chain(b""), tokens(length), length)
    assert again is not None
    assert again.cached_tokens == (length - 1) // 4 * 4 < length


def test_caches_of_different_codes_never_share_names():
    names = {
        PrefixChain(salt, 4, code).names(tokens(8), 2)[-1]
        for salt in (b"", b"int8", b"firelane-kvint8")
        for code in ("", "int8", "fp8")
    }
    assert len(names) == 9
    assert KvCache(4, 4, code="int8").chain(b"").names(tokens(8), 2) == (
        PrefixChain(b"", 4, "int8").names(tokens(8), 2)
    )


def test_salts_never_share():
    kv = KvCache(16, 4)
    fill(kv, b"acme", tokens(12))
    for salt in (b"", b"acm", b"acme\0", b"other"):
        table = reserve(kv, kv.chain(salt), tokens(12), 12)
        assert table is not None
        assert table.cached_tokens == 0
        kv.release(table)


def test_released_prefix_stays_until_the_room_is_needed():
    kv = KvCache(4, 4)
    kv.release(fill(kv, b"", tokens(12)))
    assert kv.num_available == 4
    again = reserve(kv, kv.chain(b""), tokens(12), 12)
    assert again is not None
    assert again.cached_tokens == 8
    kv.release(again)
    big = reserve(kv, kv.chain(b"x"), tokens(16), 16)
    assert big is not None
    kv.release(big)
    assert fill(kv, b"", tokens(12)).cached_tokens == 0


def test_no_room_changes_nothing():
    kv = KvCache(4, 4)
    held = fill(kv, b"", tokens(8))
    assert reserve(kv, kv.chain(b""), tokens(20), 20) is None
    kv.check_integrity([held])


def test_cached_blocks_that_are_shared_do_not_count_as_room():
    kv = KvCache(3, 4)
    kv.release(fill(kv, b"", tokens(8)))
    # 3 blocks are free, 1 of them is the shared prefix: 2 fresh ones are left, 3 would be needed.
    assert reserve(kv, kv.chain(b""), np.concatenate([tokens(4), tokens(12, 50)]), 16) is None


def test_grow_until_full():
    kv = KvCache(2, 4)
    table = fill(kv, b"", tokens(4))
    assert kv.num_to_grow(table, 8) == 1
    assert kv.grow(table, 8) == [(0, 1, table.held(0)[1])]
    assert (table.num_held, kv.num_available) == (2, 0)
    assert kv.num_to_grow(table, 9) == 1


def test_reusable_tokens_limits_the_reuse():
    kv = KvCache(8, 4)
    fill(kv, b"", tokens(12))
    table = reserve(kv, kv.chain(b""), tokens(12), 5)
    assert table is not None
    assert table.cached_tokens == 4


def test_without_prefix_caching_nothing_is_shared():
    kv = KvCache(8, 4, prefix_caching=False)
    fill(kv, b"", tokens(8))
    assert fill(kv, b"", tokens(9)).cached_tokens == 0


def test_integrity_finds_a_leak():
    kv = KvCache(4, 4)
    fill(kv, b"", tokens(4))
    with pytest.raises(AssertionError, match="leaked"):
        kv.check_integrity([])


CHUNK8, WINDOW = Chunk(8), Window(6)


@pytest.fixture
def tile(monkeypatch):
    """Kernels as if they read two positions at once."""
    for module in ("firelane.contract.span", "firelane.contract.limits"):
        monkeypatch.setattr(f"{module}.KEY_TILE", 2)


def run_to(kv, tables, chain, prompt, position):
    """Computed up to there, in one chunk."""
    kv.grow(tables, position)
    kv.publish(tables, chain, prompt, position // kv.block_size)
    kv.advance(tables, position)


@pytest.mark.usefixtures("tile")
def test_pages_behind_a_span_go_back_and_stay_findable():
    kv = KvCache(20, 2, (WINDOW,))
    chain, prompt = kv.chain(b""), tokens(20)
    tables = reserve(kv, chain, prompt, 20)
    run_to(kv, tables, chain, prompt, 16)
    assert tables.first == [5]  # position 16 sees 11 .. 16, in a tile from 10 on
    assert kv.num_used_pages == tables.num_held == 3
    kv.check_integrity([tables])
    assert kv.search.lookup(kv.chain(b""), tokens(11), 11).num_blocks == 5


@pytest.mark.usefixtures("tile")
def test_a_hit_needs_only_what_the_span_sees():
    kv = KvCache(8, 2, (CAUSAL, WINDOW))
    chain, prompt = kv.chain(b""), tokens(8)
    tables = reserve(kv, chain, prompt, 8)
    run_to(kv, tables, chain, prompt, 8)
    window = list(tables.tables[1])
    kv.release(tables)
    hit = kv.search.lookup(kv.chain(b""), tokens(9), 9)
    assert (hit.num_blocks, hit.pages[1]) == (4, window[1:])  # position 8 sees 3 .. 8, in a tile from 2 on


@pytest.mark.usefixtures("tile")
def test_a_chunk_span_needs_nothing_at_its_multiples():
    kv = KvCache(12, 2, (CHUNK8,))
    assert (
        kv.search.lookup(kv.chain(b""), tokens(20), 20).num_blocks == 8
    )  # empty spans, whatever was computed
    chain, prompt = kv.chain(b""), tokens(20)
    tables = reserve(kv, chain, prompt, 4)
    run_to(kv, tables, chain, prompt, 4)
    kv.release(tables)
    assert kv.search.lookup(kv.chain(b""), tokens(7), 7).num_blocks == 2


def test_max_tokens_is_what_the_groups_can_hold():
    assert KvCache(10, 4).max_tokens == 40
    assert KvCache(10, 4, (CAUSAL, CAUSAL)).max_tokens == 20
    window = KvCache(100, 4, (CAUSAL, Window(16)), chunk_tokens=8)
    assert window.max_tokens == (100 - (16 + 64 + 8) // 4 - 1) * 4
    assert KvCache(100, 4, (Window(16),)).max_tokens > 1 << 30


class Reference:
    """Says what must be kept of one sequence: the positions that a later query may read, by group."""

    def __init__(self, kv, chain, prompt, tables):
        self.kv, self.chain, self.prompt, self.tables = kv, chain, prompt, tables
        self.computed = tables.cached_tokens

    def check(self, content):
        for group, span in enumerate(self.kv.spans):
            for position in range(kept_from(span, self.computed), self.computed):
                page = self.tables.tables[group][position // self.kv.block_size]
                assert content[page, position % self.kv.block_size] == self.key(group, position)

    def key(self, group, position):
        return (group, tuple(self.prompt[: position + 1].tolist()))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), block_size=st.sampled_from([1, 2, 4]), tile=st.sampled_from([1, 2, 4]))
def test_what_may_still_be_read_is_kept(data, block_size, tile):
    """Random admissions, chunks and releases against the content that each page should have."""
    spans = tuple(
        data.draw(st.lists(st.sampled_from([CAUSAL, WINDOW, CHUNK8, Window(1)]), min_size=1, max_size=3))
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in ("firelane.contract.span", "firelane.contract.limits"):
            patch.setattr(f"{module}.KEY_TILE", tile)
        kv = KvCache(30, block_size, spans, chunk_tokens=4)
        content, live = {}, []
        for _ in range(data.draw(st.integers(1, 40))):
            live = turn(data, kv, content, live)
            kv.check_integrity([reference.tables for reference in live])
            for reference in live:
                reference.check(content)


def turn(data, kv, content, live):
    if not live or data.draw(st.booleans()):
        prompt = tokens(data.draw(st.integers(1, 24)))
        prompt[data.draw(st.integers(0, 23)) :] = 99
        chain = kv.chain(b"")
        tables = reserve(kv, chain, prompt, len(prompt))
        return [*live, Reference(kv, chain, prompt, tables)] if tables else live
    reference = data.draw(st.sampled_from(live))
    if data.draw(st.integers(0, 4)) == 0:
        kv.release(reference.tables)
        return [other for other in live if other is not reference]
    start = reference.computed
    stop = min(start + data.draw(st.integers(1, 4)), len(reference.prompt))
    tables = reference.tables
    if tables.prefill_tokens:
        stop = min(stop, PageBudget(kv).room(tables.num_blocks, tables.set_aside))
    if stop > start:
        run_to_with_content(kv, reference, content, start, stop)
    return live


def run_to_with_content(kv, reference, content, start, stop):
    tables = reference.tables
    for group, index, page in kv.grow(tables, stop):
        assert tables.tables[group][index] == page
        for offset in range(kv.block_size):
            content.pop((page, offset), None)
    for group in range(len(kv.spans)):
        for position in range(start, stop):
            page = tables.tables[group][position // kv.block_size]
            content[page, position % kv.block_size] = reference.key(group, position)
    reference.computed = stop
    kv.publish(tables, reference.chain, reference.prompt, stop // kv.block_size)
    kv.advance(tables, stop)


def test_a_budget_counts_and_changes_nothing():
    kv = KvCache(6, 4)
    chain, prompt = kv.chain(b""), tokens(16)
    tables = reserve(kv, chain, prompt, 16)
    kv.publish(tables, chain, prompt, 4)
    budget = PageBudget(kv)
    hit = kv.search.lookup(kv.chain(b""), prompt, 12)
    assert not budget.admit(20, kv.search.no_hit, headroom=0)
    assert budget.admit(16, hit, headroom=0)
    assert budget.available == 1
    budget.release(tables)
    assert budget.available == 2  # three of its four pages are shared with what was admitted
    assert kv.num_available == 2
    kv.check_integrity([tables])
