"""The order of waiting sequences: priorities, deadlines, turns, and a bound for those that wait long."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.engine.policies.account_queue import (
    PATIENCE_S,
    STARVED_S,
    STARVED_TURNS,
    AccountQueue,
)
from firelane.engine.sequences.urgency import PLAIN, Urgency

STEP_S = 0.01


class Waiting:
    """A sequence, as a queue knows it."""

    def __init__(self, number, arrived_s, urgency=PLAIN):
        self.id = self.arrival = number
        self.arrived_s, self.urgency, self.preemptions = arrived_s, urgency, 0

    def __repr__(self):
        return f"{self.id}: {self.urgency} at {self.arrived_s}"


def queue_of(*waiting):
    queue = AccountQueue()
    for one in waiting:
        queue.push(one, first=False)
    return queue


def order(queue, now_s):
    return [one.id for one in queue.in_turn(now_s)]


urgencies = st.one_of(
    st.just(PLAIN),
    st.builds(
        Urgency,
        priority=st.integers(-2, 2),
        due_s=st.one_of(st.just(math.inf), st.floats(0.1, 60.0)),
    ),
)


@given(st.lists(urgencies, max_size=12))
def test_priority_first_then_the_deadline_then_the_arrival(given_urgencies):
    waiting = [Waiting(i, 0.001 * i, urgency) for i, urgency in enumerate(given_urgencies)]

    def rank(one):
        due_s = one.urgency.due_s
        return one.urgency.priority, due_s if due_s < math.inf else one.arrived_s + PATIENCE_S, one.id

    expected = sorted(waiting, key=rank)
    assert order(queue_of(*waiting), 1.0) == [one.id for one in expected]


def test_without_any_urgency_it_is_first_come_first_served_for_ever():
    queue = queue_of(*(Waiting(i, float(i)) for i in range(9)))
    assert order(queue, 1e9) == list(range(9))
    queue.push(Waiting(9, 9.0), first=True)
    assert order(queue, 1e9) == [9, *range(9)]


def test_those_with_a_deadline_and_those_without_take_turns_where_both_wait_long():
    due = [Waiting(i, 0.0, Urgency(due_s=500.0 + i)) for i in range(6)]
    plain = [Waiting(10 + i, 0.0) for i in range(4)]
    worse = Waiting(90, 0.0, Urgency(priority=1))
    assert order(queue_of(worse, *due, *plain), 2 * PATIENCE_S) == [0, 10, 1, 11, 2, 12, 3, 13, 4, 5, 90]


moves = st.lists(
    st.one_of(st.tuples(st.just("push"), urgencies), st.tuples(st.just("admit"), st.floats(0.0, 20.0))),
    max_size=80,
)


@settings(max_examples=300)
@given(moves)
def test_who_has_waited_long_is_admitted_within_a_bound(schedule):
    """One that has waited for STARVED_S, with n older ones before it, is admitted within STARVED_TURNS *
    (n + 1) admissions."""
    queue, waiting, now_s, allowed = AccountQueue(), [], 0.0, {}
    for number, (move, what) in enumerate(schedule):
        if move == "push":
            waiting.append(Waiting(number, now_s, what))
            queue.push(waiting[-1], first=False)
            continue
        now_s += what
        for before, one in enumerate(waiting):
            if one.arrived_s <= now_s - STARVED_S:
                allowed.setdefault(one.id, STARVED_TURNS * (before + 1))
        head = next(queue.in_turn(now_s), None)
        if head is None:
            continue
        queue.remove(head)
        queue.admitted()
        waiting.remove(head)
        for one in waiting:
            if one.id in allowed:
                allowed[one.id] -= 1
                assert allowed[one.id] > 0, f"{one} waits for too long"


@given(moves, st.randoms())
def test_a_queue_gives_each_of_its_sequences_once(schedule, random):
    queue, held, now_s = AccountQueue(), {}, 0.0
    for number, (move, what) in enumerate(schedule):
        if move == "push":
            held[number] = Waiting(number, now_s, what)
            queue.push(held[number], first=random.random() < 0.3)
        elif held:
            now_s += what
            queue.remove(held.pop(random.choice(list(held))))
        assert sorted(order(queue, now_s)) == sorted(held)
        assert len(queue) == len(held)
