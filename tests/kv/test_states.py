"""Snapshots of recurrent states: the pool, the rule by which prompts leave some, and lookups with both pages
and snapshots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from firelane.contract import CAUSAL, NO_SNAPSHOT, Chunk, Window, kept_from
from firelane.kv import KvCache, PageBudget, SnapshotRule, StateSave, StateSnapshots
from firelane.kv.states import SnapshotPool

NAMES = [b"a", b"b", b"c", b"d", b"e"]


def take(pool: SnapshotPool) -> int:
    snapshot = next(pool.free())
    pool.take(snapshot)
    return snapshot


def named(pool: SnapshotPool, name: bytes) -> int:
    snapshot = take(pool)
    pool.publish(snapshot, name)
    pool.release(snapshot)
    return snapshot


def test_blank_snapshots_go_first_then_the_least_recently_used():
    pool = SnapshotPool(3)
    a, b = named(pool, b"a"), named(pool, b"b")
    assert list(pool.free()) == [2, a, b]
    pool.share(a)
    assert list(pool.free()) == [2, b]
    pool.release(a)
    assert list(pool.free()) == [2, b, a]


def test_a_snapshot_that_is_taken_loses_its_name():
    pool = SnapshotPool(1)
    named(pool, b"a")
    assert take(pool) == 0
    assert pool.find(b"a") == NO_SNAPSHOT
    assert (pool.num_free, pool.num_named) == (0, 0)


def test_a_second_one_of_the_same_content_stays_blank_and_keeps_the_first():
    pool = SnapshotPool(3)
    a, b = named(pool, b"a"), named(pool, b"b")
    second = take(pool)
    assert not pool.publish(second, b"a")
    pool.release(second)
    assert list(pool.free()) == [second, b, a]
    pool.check_integrity([])


def test_what_is_held_cannot_be_taken_or_discarded():
    pool = SnapshotPool(1)
    held = named(pool, b"a")
    pool.share(held)
    with pytest.raises(KeyError):
        pool.take(held)
    pool.discard(b"a")
    assert pool.find(b"a") == held
    pool.release(held)
    pool.discard(b"a")
    pool.discard(b"a")
    assert (pool.find(b"a"), list(pool.free())) == (NO_SNAPSHOT, [held])


def test_integrity_check_can_fail():
    pool = SnapshotPool(2)
    take(pool)
    with pytest.raises(AssertionError, match="leaked"):
        pool.check_integrity([])
    pool.check_integrity([0])
    pool._blank[0] = None
    with pytest.raises(AssertionError, match="in 2 places"):
        pool.check_integrity([0])


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model that keeps nothing but who holds what, the content of each name, and when each
    was used last."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SnapshotPool(4)
        self.held: list[int] = []
        self.content: dict[int, bytes] = {}
        self.order: list[int] = []

    @precondition(lambda self: self.pool.num_free > 0)
    @rule()
    def take(self):
        snapshot = take(self.pool)
        assert snapshot not in self.held
        blank = [s for s in range(4) if s not in self.held and s not in self.content]
        assert snapshot in blank if blank else snapshot == self.order[0]
        self.forget(snapshot)
        self.held.append(snapshot)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), name=st.sampled_from(NAMES))
    def publish(self, which, name):
        snapshot = self.held[which % len(self.held)]
        if snapshot in self.content:
            return
        is_new = name not in self.content.values()
        assert self.pool.publish(snapshot, name) == is_new
        if is_new:
            self.content[snapshot] = name
        else:
            self.touch(next(s for s, n in self.content.items() if n == name))

    @rule(name=st.sampled_from(NAMES))
    def share(self, name):
        snapshot = self.pool.find(name)
        assert self.content.get(snapshot, name) == name
        assert (snapshot == NO_SNAPSHOT) == (name not in self.content.values())
        if snapshot != NO_SNAPSHOT:
            self.pool.share(snapshot)
            self.order = [s for s in self.order if s != snapshot]
            self.held.append(snapshot)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def release(self, which):
        snapshot = self.held.pop(which % len(self.held))
        self.pool.release(snapshot)
        if snapshot not in self.held and snapshot in self.content:
            self.order.append(snapshot)

    @rule(name=st.sampled_from(NAMES))
    def discard(self, name):
        self.pool.discard(name)
        for snapshot in [s for s, n in self.content.items() if n == name and s not in self.held]:
            self.forget(snapshot)

    @invariant()
    def sound(self):
        self.pool.check_integrity(self.held)
        assert self.pool.num_free == 4 - len(set(self.held))
        assert self.pool.num_named == len(self.content)

    def forget(self, snapshot):
        self.content.pop(snapshot, None)
        self.order = [s for s in self.order if s != snapshot]

    def touch(self, snapshot):
        if snapshot in self.order:
            self.order.remove(snapshot)
            self.order.append(snapshot)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase


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
