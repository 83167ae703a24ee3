from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from firelane.kv.pool import BlockPool


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


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model that keeps nothing but who holds what and the content of each name."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}

    @precondition(lambda self: self.pool.num_free > 0)
    @rule()
    def take(self):
        block = self.pool.take()
        assert all(block not in blocks for blocks in self.held)
        self.content.pop(block, None)
        self.held.append([block])

    @rule(data=st.data())
    def take_many(self, data):
        pages = self.pool.take_many(data.draw(st.integers(0, self.pool.num_free)))
        assert len(set(pages)) == len(pages)
        for page in pages:
            assert all(page not in held for held in self.held)
            self.content.pop(page, None)
            self.held.append([page])

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), name=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def publish(self, which, name):
        block = self.held[which % len(self.held)][0]
        if block not in self.content and name not in self.content.values():
            self.content[block] = name
        self.pool.publish(block, 0, name)

    @rule(name=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def share(self, name):
        for block in self.pool.find(0, [name], 1):
            assert self.content[block] == name
            self.pool.share([block])
            self.held.append([block])

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def release(self, which):
        self.pool.release(self.held.pop(which % len(self.held)))

    @invariant()
    def sound(self):
        self.pool.check_integrity()
        assert self.pool.num_free == 6 - len({b for blocks in self.held for b in blocks})


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
