from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from firelane.kv.pool import UNKNOWN, BlockPool, NamedPage


def test_blank_pages_go_first_then_the_least_recently_used():
    pool = BlockPool(3)
    a, b = pool.take(), pool.take()
    pool.publish(a, 0, b"a")
    pool.publish(b, 0, b"b")
    pool.release([b])
    pool.release([a])
    assert pool.take() == 2
    assert pool.take() == b
    assert pool.find(0, [b"a"], 1) == [a]
    assert pool.find(0, [b"b"], 1) == []


def test_the_tail_of_a_prefix_is_evicted_before_its_head():
    pool = BlockPool(2)
    ids = [pool.take(), pool.take()]
    for block, name in zip(ids, (b"head", b"tail"), strict=True):
        pool.publish(block, 0, name)
    pool.release(ids)
    assert pool.take() == ids[1]


def test_a_shared_block_is_not_given_out():
    pool = BlockPool(1)
    block = pool.take()
    pool.publish(block, 0, b"x")
    pool.share([block])
    pool.release([block])
    assert pool.num_free == 0
    with pytest.raises(IndexError):
        pool.take()
    pool.release([block])
    assert pool.num_free == 1


def test_equal_content_is_named_once():
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.publish(first, 0, b"x")
    pool.publish(second, 0, b"x")
    assert pool.find(0, [b"x"], 1) == [first]
    pool.release([second])
    pool.check_integrity()


def test_integrity_check_can_fail():
    pool = BlockPool(2)
    block = pool.take()
    pool.release([block])
    pool._references[block] = 1
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity()


def named(pool: BlockPool, name: bytes) -> int:
    page = pool.take()
    pool.publish(page, 0, name)
    pool.release([page])
    return page


class Told:
    """A watcher that notes what it is told."""

    def __init__(self) -> None:
        self.names: list[tuple[int, bytes]] = []

    def published(self, page: int, named: NamedPage) -> None:
        self.names.append((page, named.name))

    def shared(self, pages: list[tuple[int, NamedPage]]) -> None:
        pass


def test_a_page_that_is_chosen_loses_its_name_and_one_in_use_cannot_be():
    pool = BlockPool(2)
    a = named(pool, b"a")
    pool.take_page(a)
    assert pool.page_of(0, b"a") == UNKNOWN
    with pytest.raises(KeyError):
        pool.take_page(a)
    pool.take_page(1 - a)
    assert (pool.num_free, pool.num_named) == (0, 0)


def test_what_is_held_cannot_be_discarded():
    pool = BlockPool(1)
    page = named(pool, b"a")
    pool.share([page])
    pool.discard(0, b"a")
    assert pool.page_of(0, b"a") == page
    pool.release([page])
    pool.discard(0, b"a")
    pool.discard(0, b"a")
    assert (pool.page_of(0, b"a"), list(pool.free())) == (UNKNOWN, [page])


def test_a_name_is_told_when_it_is_published_or_later():
    pool = BlockPool(2)
    pool.watcher = told = Told()
    first, second = pool.take(), pool.take()
    assert pool.publish(first, 0, b"a")
    assert pool.publish(second, 0, b"b", tells=False)
    assert told.names == [(first, b"a")]
    pool.tell(0, b"b")
    pool.tell(0, b"nobody's")
    assert told.names == [(first, b"a"), (second, b"b")]


NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model that keeps nothing but who holds what, the content of each name, and when each
    was used last."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}
        self.order: list[int] = []
        """Pages that nobody uses and that have a name, the least recently used first."""

    @precondition(lambda self: self.pool.num_free > 0)
    @rule(chosen=st.none() | st.integers(0, 99))
    def take(self, chosen):
        free = list(self.pool.free())
        block = free[0] if chosen is None else free[chosen % len(free)]
        if chosen is None:
            assert block not in self.content or block == self.order[0]
            assert self.pool.take() == block
        else:
            self.pool.take_page(block)
        self.now_held(block)

    @rule(data=st.data())
    def take_many(self, data):
        free = list(self.pool.free())
        pages = self.pool.take_many(data.draw(st.integers(0, self.pool.num_free)))
        assert pages == free[: len(pages)]
        for page in pages:
            self.now_held(page)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), name=NAMES)
    def publish(self, which, name):
        block = self.held[which % len(self.held)][0]
        is_new = block not in self.content and name not in self.content.values()
        assert self.pool.publish(block, 0, name) == is_new
        if is_new:
            self.content[block] = name

    @rule(name=NAMES)
    def share(self, name):
        assert (self.pool.page_of(0, name) == UNKNOWN) == (name not in self.content.values())
        for block in self.pool.find(0, [name], 1):
            assert self.content[block] == name
            self.pool.share([block])
            self.order = [page for page in self.order if page != block]
            self.held.append([block])

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def release(self, which):
        (block,) = self.held.pop(which % len(self.held))
        self.pool.release([block])
        if [block] not in self.held and block in self.content:
            self.order.append(block)

    @rule(name=NAMES)
    def discard(self, name):
        self.pool.discard(0, name)
        for block in [page for page in self.order if self.content[page] == name]:
            self.lose(block)

    def now_held(self, block):
        assert [block] not in self.held
        self.lose(block)
        self.held.append([block])

    def lose(self, block):
        self.content.pop(block, None)
        self.order = [page for page in self.order if page != block]

    @invariant()
    def sound(self):
        self.pool.check_integrity()
        assert self.pool.num_free == 6 - len({b for blocks in self.held for b in blocks})
        assert self.pool.num_named == len(self.content)
        assert list(self.pool.free())[self.pool.num_free - len(self.order) :] == self.order


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def test_what_is_forgotten_is_blank_and_what_is_held_keeps_its_name():
    pool = BlockPool(3)
    held, idle = pool.take(), pool.take()
    pool.publish(held, 0, b"held")
    pool.publish(idle, 0, b"idle")
    pool.release([idle])
    pool.forget()
    pool.check_integrity()
    assert pool.find(0, [b"idle"], 1) == []
    assert pool.find(0, [b"held"], 1) == [held]
    assert pool.num_free == 2


def test_a_prefix_ends_at_the_first_name_that_is_not_known():
    pool = BlockPool(2)
    pages = [pool.take(), pool.take()]
    for page, name in zip(pages, (b"a", b"c"), strict=True):
        pool.publish(page, 0, name)
    assert pool.find(0, [b"a", b"b", b"c"], 3) == pages[:1]
    assert pool.find_each(0, [b"a", b"b", b"c"], 3) == [pages[0], UNKNOWN, pages[1]]
    assert pool.locate(0, b"b") == (UNKNOWN, 0)
    assert pool.locate(0, b"c")[0] == pages[1]
