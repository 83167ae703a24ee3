"""Snapshots of recurrent states: the pool, the rule by which prompts leave some, and lookups with both pages
and snapshots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, NO_SNAPSHOT, Chunk, Window, kept_from
from firelane.kv import KvCache, PageBudget, SnapshotRule, StateSave, StateSnapshots
from firelane.kv.pool import STATES, NamedPage


def test_integrity_check_can_fail():
    states = StateSnapshots(2, block_size=4)
    held = states.begin(NO_SNAPSHOT, ())
    states.take(held, StateSave(0, 4, 1, is_latest=False))
    states.check_integrity([held])
    with pytest.raises(AssertionError, match="leaked"):
        states.check_integrity([])


def test_a_second_snapshot_of_the_same_tokens_stays_blank_and_keeps_the_first():
    """The first one is then the most recently used of all."""
    states = StateSnapshots(3, block_size=4)
    prompts = [np.full(4, 1, np.int32), np.full(4, 2, np.int32)]
    first, other, second = (save_of(states, prompt) for prompt in (prompts[0], prompts[1], prompts[0]))
    assert list(states.free()) == [second, other, first]
    assert states.num_named == 2
    states.check_integrity([])


def save_of(states, prompt):
    """The snapshot of a prompt whose sequence has ended."""
    save = StateSave(0, len(prompt), next(states.free()), is_latest=False)
    held = states.begin(NO_SNAPSHOT, ())
    states.take(held, save)
    states.publish(held, save, KvCache(1, 4).chain(b""), prompt)
    states.release(held)
    return save.snapshot


def test_a_watcher_is_told_of_states_by_their_numbers_among_all():
    states = StateSnapshots(2, block_size=4, first=10)
    told = []

    class Watcher:
        def published(self, page, named):
            told.append(("published", page, named.group))

        def shared(self, pages):
            told.append(("shared", *((page, named.group) for page, named in pages)))

    states.watch(Watcher())
    snapshot = save_of(states, np.full(4, 1, np.int32))
    states.release(states.begin(snapshot, ()))
    assert told == [("published", 10 + snapshot, STATES), ("shared", (10 + snapshot, STATES))]


def test_states_that_come_from_elsewhere_have_their_numbers_among_all():
    states = StateSnapshots(2, block_size=4, first=10)
    wanted = [NamedPage(STATES, name) for name in (b"a", b"b", b"c")]
    places = states.incoming.begin(wanted, 3)
    assert sorted(places) == [10, 11]
    states.check_integrity([])
    states.incoming.settle(places[:1], [False])
    states.incoming.settle_as(places[1], b"of fewer blocks")
    assert states.locate(b"of fewer blocks")[0] == places[1]
    assert (states.num_free, states.num_named) == (2, 1)
    states.check_integrity([])


def wanted(tokens, hit=0, shared=0, *, interval=32, at_least=8, count=4):
    rule = SnapshotRule(interval=interval, at_least=at_least)
    return StateSnapshots(count, block_size=4, rule=rule).wanted(tokens, hit, shared)


@pytest.mark.parametrize(
    ("tokens", "hit", "shared", "lengths"),
    [
        (9, 0, 0, (8,)),
        (8, 0, 0, ()),  # its last token must be computed, so that it may begin behind 4 at most
        (41, 0, 0, (32, 40)),
        (39, 0, 0, (32,)),  # 36 is too near
        (100, 36, 36, (64, 96)),
        (100, 36, 60, (60, 96)),  # 64 is too near to 60
        (41, 40, 40, ()),
        (20, 12, 12, ()),
        (21, 12, 12, (20,)),
        (50, 0, 12, (12, 32, 48)),
    ],
)
def test_lengths_of_snapshots(tokens, hit, shared, lengths):
    assert wanted(tokens, hit, shared) == lengths
    assert wanted(tokens, hit, shared, interval=29) == lengths  # rounded up to whole blocks
    assert wanted(tokens, hit, shared, count=0) == ()


@given(tokens=st.integers(1, 400), data=st.data(), interval=st.integers(1, 90), at_least=st.integers(1, 70))
def test_snapshots_lie_at_block_boundaries_and_far_enough_apart(tokens, data, interval, at_least):
    blocks = (tokens - 1) // 4
    hit = 4 * data.draw(st.integers(0, blocks))
    shared = 4 * data.draw(st.integers(hit // 4, blocks))
    found = wanted(tokens, hit, shared, interval=interval, at_least=at_least)
    lengths = [hit, *found]
    assert all(n % 4 == 0 and n < tokens for n in lengths)
    assert all(b - a >= at_least for a, b in zip(lengths, found, strict=False))
    assert blocks * 4 - lengths[-1] < at_least


@pytest.fixture
def tile(monkeypatch):
    """Kernels as if they read two positions at once."""
    for module in ("firelane.contract.span", "firelane.contract.limits"):
        monkeypatch.setattr(f"{module}.KEY_TILE", 2)


def cache(spans=(CAUSAL,), pages=60, snapshots=8, block_size=2):
    states = StateSnapshots(snapshots, block_size=block_size, rule=SnapshotRule(interval=1000, at_least=1))
    return KvCache(pages, block_size, spans, chunk_tokens=4, states=states)


def prefill(kv, prompt, stops, saves):
    """A sequence that has computed its prompt in chunks that end at `stops`, and left snapshots at `saves`,
    as far as there are any."""
    chain = kv.chain(b"")
    hit = kv.search.lookup(chain, prompt, len(prompt))
    if not PageBudget(kv).admit(len(prompt), hit, headroom=0):
        return None
    tables = kv.share(len(prompt), hit)
    kv.reserve(tables, hit)
    for stop in (n for n in sorted({*stops, len(prompt)}) if tables.cached_tokens < n <= len(prompt)):
        kv.grow(tables, stop)
        snapshot = next(kv.states.free(), None)
        save = None
        if stop in saves and snapshot is not None:
            save = StateSave(0, stop, snapshot, is_latest=False)
            kv.states.take(tables.snapshots, save)
        kv.publish(tables, chain, prompt, stop // kv.block_size)
        kv.states.begun(tables.snapshots)
        if save:
            kv.states.publish(tables.snapshots, save, chain, prompt)
        kv.advance(tables, stop // kv.block_size * kv.block_size)
        kv.check_integrity([tables])
    return tables


def lookup(kv, prompt):
    return kv.search.lookup(kv.chain(b""), prompt, len(prompt))


def tokens(count):
    return np.arange(count, dtype=np.int32)


def test_a_hit_needs_a_snapshot_of_exactly_its_length():
    kv = cache()
    tables = prefill(kv, tokens(20), (), (8, 12))
    kv.release(tables)
    assert lookup(kv, tokens(20)).num_blocks == 0
    tables = prefill(kv, tokens(20), (8, 12), (8, 12))
    hit = lookup(kv, tokens(20))
    assert (hit.num_blocks, hit.shared_blocks) == (6, 9)
    hit = lookup(kv, tokens(12))
    assert (hit.num_blocks, hit.snapshot, hit.shared_blocks) == (4, 0, 5)
    assert lookup(kv, tokens(8)) == kv.search.no_hit._replace(shared_blocks=3)
    kv.release(tables)
    kv.check_integrity([])


@pytest.mark.usefixtures("tile")
def test_a_chunk_group_needs_a_snapshot_even_at_its_multiples():
    kv = cache((Chunk(8),))
    assert lookup(kv, tokens(20)).num_blocks == 0
    kv.release(prefill(kv, tokens(20), (8,), (8,)))
    assert lookup(kv, tokens(20)).num_blocks == 4


def test_without_states_a_snapshot_is_not_asked_for():
    kv = KvCache(60, 2)
    kv.release(prefill(kv, tokens(20), (), ()))
    assert lookup(kv, tokens(20)).num_blocks == 9


@settings(max_examples=150, deadline=None)
@given(data=st.data(), block_size=st.sampled_from([1, 2, 4]), tile=st.sampled_from([1, 2, 4]))
def test_a_hit_is_the_longest_prefix_that_all_kinds_have(data, block_size, tile):
    """Lookups against the definition, after random prompts have filled a small cache and left it."""
    kinds = st.sampled_from([CAUSAL, Window(6), Chunk(8), Window(1)])
    spans = tuple(data.draw(st.lists(kinds, min_size=1, max_size=3)))
    with pytest.MonkeyPatch.context() as patch:
        for module in ("firelane.contract.span", "firelane.contract.limits"):
            patch.setattr(f"{module}.KEY_TILE", tile)
        kv = cache(spans, pages=80, snapshots=3, block_size=block_size)
        for _ in range(data.draw(st.integers(1, 6))):
            prompt = random_prompt(data)
            saves = data.draw(st.lists(st.integers(1, 6).map(lambda n: n * block_size), max_size=4))
            hit = lookup(kv, prompt)
            assert (hit.num_blocks, hit.shared_blocks) == longest(kv, prompt)
            tables = prefill(kv, prompt, {*saves, *range(4, 24, 4)}, saves)
            if tables is not None:
                assert tables.cached_tokens == hit.num_blocks * block_size
                kv.release(tables)
            kv.check_integrity([])


def random_prompt(data):
    prompt = tokens(data.draw(st.integers(1, 24)))
    prompt[data.draw(st.integers(0, 23)) :] = 99
    return prompt


def longest(kv, prompt):
    """Blocks of the longest prefix with pages and a snapshot, and of the longest with pages."""
    size = kv.block_size
    names = kv.chain(b"").names(prompt, len(prompt) // size)
    with_pages = [n for n in range((len(prompt) - 1) // size + 1) if has_pages(kv, names, n)]
    with_state = [n for n in with_pages if n == 0 or kv.states.find(names[n - 1]) != NO_SNAPSHOT]
    return with_state[-1], with_pages[-1]


def has_pages(kv, names, blocks):
    size = kv.block_size
    return all(
        kv._pool.find_each(group, names[index : index + 1], 1) != [-1]
        for group, span in enumerate(kv.spans)
        for index in range(kept_from(span, blocks * size) // size, blocks)
    )
