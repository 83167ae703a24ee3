"""Events of the prefix cache: whoever follows them knows at each moment what later prompts would find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, Window
from firelane.kv import KvCache, PageBudget
from firelane.kv.prefix import BlockEvents, number_of, salt_id
from firelane.wire.cache_events import BlocksCleared, BlocksRemoved, BlocksStored

SIZE = 4


def tokens(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int32)


class Follower:
    """An index outside, by nothing but events. known: the tokens of a block by its name."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self.parents: dict[int, int | None] = {}

    def hear(self, events) -> None:
        for event in events:
            if isinstance(event, BlocksCleared):
                self.known.clear()
            elif isinstance(event, BlocksRemoved):
                for name in event.names:
                    del self.known[name]
            else:
                self._store(event)

    def _store(self, event: BlocksStored) -> None:
        parent, step = event.parent, 4 * SIZE
        assert len(event.tokens) == step * len(event.names)
        for index, name in enumerate(event.names):
            assert name not in self.known
            self.known[name] = event.tokens[index * step : (index + 1) * step]
            self.parents[name], parent = parent, name


def followed(pages: int, spans=(CAUSAL,)) -> tuple[KvCache, Follower]:
    kv, follower = KvCache(pages, SIZE, spans), Follower()
    kv.tell_events()
    return kv, follower


def admit(kv: KvCache, prompt: np.ndarray, salt: bytes = b""):
    chain = kv.chain(salt)
    hit = kv.search.lookup(chain, prompt, len(prompt))
    if not PageBudget(kv).admit(len(prompt), hit, headroom=0):
        return None
    tables = kv.share(len(prompt), hit)
    kv.reserve(tables, hit)
    kv.grow(tables, len(prompt))
    return chain, tables


def compute(kv: KvCache, prompt: np.ndarray, salt: bytes = b"") -> None:
    admitted = admit(kv, prompt, salt)
    assert admitted is not None
    chain, tables = admitted
    kv.publish(tables, chain, prompt, len(prompt) // SIZE)
    kv.release(tables)


def test_a_follower_begins_with_an_empty_cache():
    kv, _ = followed(8)
    assert kv.take_events() == [BlocksCleared()]
    assert kv.take_events() == []


def test_blocks_are_told_with_their_tokens_and_what_is_before_them():
    kv, _ = followed(16)
    kv.take_events()
    compute(kv, tokens(9))
    compute(kv, tokens(18))
    names = [number_of(name) for name in kv.chain(b"").names(tokens(16), 4)]
    assert kv.take_events() == [
        BlocksStored(names[:2], None, tokens(8).tobytes()),
        BlocksStored(names[2:], names[1], tokens(8, 8).tobytes()),
    ]


def test_a_removed_block_is_told_before_the_one_in_its_place():
    kv, _ = followed(4)
    compute(kv, tokens(16))
    kv.take_events()
    compute(kv, tokens(4, 100))
    removed, stored = kv.take_events()
    last = number_of(kv.chain(b"").names(tokens(16), 4)[3])
    assert removed == BlocksRemoved([last])
    assert isinstance(stored, BlocksStored)


def test_a_salt_is_told_apart_and_not_told():
    kv, _ = followed(16)
    kv.take_events()
    for salt in (b"", b"one", b"two"):
        compute(kv, tokens(10), salt)
    events = kv.take_events()
    assert all(isinstance(event, BlocksStored) for event in events)
    ids = [event.salt_id for event in events]
    assert ids[0] == ""
    assert len({*ids}) == len({event.names[0] for event in events}) == 3
    assert ids[1] == salt_id(kv.chain(b"one"))
    assert b"one".hex() not in ids[1]
    assert kv.chain(b"one").root.hex()[:8] not in ids[1]
    compute(kv, tokens(14), b"one")
    (later,) = kv.take_events()
    assert (later.salt_id, later.parent) == ("", events[1].names[1])


def test_nothing_is_remembered_where_nobody_follows():
    kv = KvCache(16, SIZE)
    compute(kv, tokens(12))
    assert kv.take_events() == []
    off = KvCache(16, SIZE, prefix_caching=False)
    off.tell_events()
    assert off.take_events() == []


def test_pages_of_another_engine_are_told_with_the_tokens_of_who_uses_them():
    kv, follower = followed(16)
    chain, prompt = kv.chain(b""), tokens(14)
    wanted = kv.search.wanted(chain, prompt, len(prompt))
    pages = kv.incoming.begin(wanted, 16)
    kv.incoming.settle(pages, [True, True, False])
    follower.hear(kv.take_events())
    assert follower.known == {}
    compute(kv, prompt)
    follower.hear(kv.take_events())
    names = [number_of(name) for name in chain.names(prompt, 3)]
    assert list(follower.known) == names
    assert [follower.parents[name] for name in names] == [None, *names[:2]]


def test_a_page_that_nobody_has_used_goes_without_a_word():
    kv, _ = followed(2)
    kv.take_events()
    pages = kv.incoming.begin(kv.search.wanted(kv.chain(b""), tokens(9), 9), 2)
    kv.incoming.settle(pages, [True, True])
    kv.forget()
    assert kv.take_events() == []


def test_of_several_groups_the_causal_one_speaks():
    kv, follower = followed(24, (Window(8), CAUSAL))
    compute(kv, tokens(21))
    follower.hear(kv.take_events())
    assert list(follower.known) == [number_of(name) for name in kv.chain(b"").names(tokens(20), 5)]
    kv.forget()
    follower.hear(kv.take_events())
    assert follower.known == {}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["compute", "hold", "let go", "pull", "forget"]),
            st.integers(0, 3),
            st.integers(5, 30),
        ),
        max_size=40,
    ),
    st.sampled_from([(CAUSAL,), (CAUSAL, Window(8))]),
)
def test_a_follower_knows_what_prompts_find(steps, spans):
    kv, follower = followed(20, spans)
    held = []
    for what, first, count in steps:
        prompt = tokens(count, 100 * first)
        if what == "compute" and PageBudget(kv).admit(count, kv.search.no_hit, headroom=0):
            compute(kv, prompt)
        elif what == "hold" and (admitted := admit(kv, prompt)) is not None:
            kv.publish(admitted[1], admitted[0], prompt, count // SIZE)
            held.append(admitted[1])
        elif what == "let go" and held:
            kv.release(held.pop())
        elif what == "pull":
            wanted = kv.search.wanted(kv.chain(b""), prompt, count)
            pages = kv.incoming.begin(wanted, kv.num_available)
            kv.incoming.settle(pages, [index % 3 != 1 for index in range(len(pages))])
        elif what == "forget" and not held:
            kv.forget()
        follower.hear(kv.take_events())
        _agrees(kv, follower)
        kv.check_integrity(held)


def _agrees(kv: KvCache, follower: Follower) -> None:
    """Check that the follower knows, of each prompt, exactly the blocks that are there and the block that
    each follows, without pulled blocks that nobody has used yet."""
    events = kv._pool.events
    assert isinstance(events, BlockEvents)
    for first in range(4):
        names = kv.chain(b"").names(tokens(30, 100 * first), 7)
        for index, name in enumerate(names):
            is_there = kv.locate(0, name)[0] >= 0 and name not in events._untold
            assert (number_of(name) in follower.known) == is_there
            if is_there:
                number, before = number_of(name), number_of(names[index - 1]) if index else None
                assert follower.known[number] == tokens(SIZE, 100 * first + SIZE * index).tobytes()
                assert follower.parents[number] == before


@pytest.mark.parametrize("spans", [(CAUSAL,), (Window(8),)])
def test_blocks_of_a_long_prompt_come_as_its_steps_end(spans):
    kv, follower = followed(40, spans)
    prompt = tokens(40)
    admitted = admit(kv, prompt)
    assert admitted is not None
    chain, tables = admitted
    for done in range(1, 11):
        kv.publish(tables, chain, prompt, done)
        events = kv.take_events()
        follower.hear(events)
        assert number_of(chain.names(prompt, 10)[done - 1]) in follower.known
        kv.advance(tables, done * SIZE)
