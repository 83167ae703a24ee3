"""Priorities and deadlines in the engine: order, bounds, refusals, and shares of tenants that stay."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.engine.policies.account_queue import (
    PATIENCE_S,
    STARVED_S,
)
from firelane.engine.policies.deadlines import CHECK_S
from firelane.engine.policies.fair import FairPolicy
from firelane.engine.policies.victims import MOST_FOR_PRIORITY
from firelane.wire.frames import Rejected
from tests.engine.test_fair_schedules import check, claims, hold_times, sizes, steps_to_first_token

STEP_S = 0.01


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def timed(driver, clock, step_s=STEP_S, prefix_cache=False, **options):
    """An engine whose steps take step_s, which its policy knows."""
    policy = FairPolicy(16, clock)
    d = driver(policy=policy, clock=clock, prefix_cache=prefix_cache, **options)
    for _ in range(4):
        for tokens in (1, 4, 16):
            policy.step_ended(tokens, step_s)
    wait = d.executor.wait

    def waiting():
        clock.now_s += step_s
        return wait()

    d.executor.wait = waiting
    return d


@pytest.mark.parametrize(("deadline_ms", "is_late"), [(5, True), (50, True), (75, True), (85, False)])
def test_what_cannot_be_in_time_is_refused_at_once(driver, request_of, clock, deadline_ms, is_late):
    """8 tokens, of which each takes 10 ms."""
    d = timed(driver, clock)
    d.submit(request_of(1, range(8), deadline_ms=deadline_ms, due_tokens=8))
    d.step()
    assert (1 in d.rejected) is is_late
    if is_late:
        assert "is due in" in d.rejected[1]
        assert d.executor.computed_tokens == 0
    d.run()


def test_the_refusal_has_a_status_and_a_code(driver, request_of, clock):
    d = timed(driver, clock)
    d.submit(request_of(1, range(8), deadline_ms=5, due_tokens=8))
    d.core.step()
    [frame] = [frame for frame in d.channel.frames if isinstance(frame, Rejected)]
    assert (frame.status, frame.code, frame.elsewhere) == (503, "deadline_unreachable", False)


def test_an_engine_that_has_run_no_step_refuses_nothing_but_what_is_over(driver, request_of, clock):
    d = driver(policy=FairPolicy(16, clock), clock=clock)
    d.submit(request_of(1, range(8), deadline_ms=1, due_tokens=8))
    d.step()
    assert not d.rejected
    d.run()
    assert d.reasons == {1: "length"}


@pytest.mark.parametrize("is_cached", [False, True])
def test_of_a_prompt_that_is_cached_only_the_rest_counts(driver, request_of, clock, is_cached):
    prompt = [k % 50 for k in range(320)]
    d = timed(driver, clock, num_blocks=400, max_model_len=400, prefix_cache=True)
    if is_cached:
        d.submit(request_of(1, prompt, max_tokens=1))
        d.run()
    clock.now_s += 1.0
    d.submit(request_of(2, prompt, max_tokens=1, deadline_ms=100))  # as a whole it takes 20 steps
    d.step()
    assert (2 in d.rejected) is not is_cached
    d.run()


def test_prompts_that_are_ahead_count(driver, request_of, clock):
    d = timed(driver, clock, max_num_seqs=1, max_output_rows=1, num_blocks=200)
    d.submit(*(request_of(i, range(16), max_tokens=30) for i in range(20)))
    d.step()
    d.submit(request_of(90, range(16), deadline_ms=150), request_of(91, range(16), deadline_ms=900))
    clock.now_s += CHECK_S
    d.step()
    assert list(d.rejected) == []  # they come first, and it is not known when a slot is free
    d.submit(*(request_of(100 + i, range(16), deadline_ms=100) for i in range(20)))
    clock.now_s += CHECK_S
    d.step()
    assert set(d.rejected) >= {119, 118}
    assert not {90, 100, 91} & set(d.rejected)


@pytest.mark.parametrize(
    ("claim", "is_late"),
    [
        ({"tenant": "b"}, False),  # 16 tokens of the flood's come before its own, by their shares
        ({"tenant": "b", "weight": 0.05}, True),
        ({"tenant": "b", "background": True}, True),
    ],
)
def test_prompts_of_other_tenants_are_ahead_by_their_shares(driver, request_of, clock, claim, is_late):
    """The flood's prompts take 400 ms."""
    d = timed(driver, clock, max_num_seqs=4, max_output_rows=9, num_blocks=400)
    hold_times(d, 8)
    d.submit(*(request_of(100 + i, range(16), tenant="a", max_tokens=30) for i in range(40)))
    d.step()
    clock.now_s += CHECK_S
    d.submit(request_of(1, range(16), max_tokens=1, deadline_ms=150, **claim))
    d.step()
    assert (1 in d.rejected) is is_late


def test_what_becomes_late_while_it_waits_is_refused_then(driver, request_of, clock):
    d = timed(driver, clock, max_num_seqs=1, max_output_rows=1)
    d.submit(request_of(1, range(4), max_tokens=40))
    d.step()
    d.submit(request_of(2, range(4), max_tokens=2, deadline_ms=200, due_tokens=2))
    d.step()
    assert 2 not in d.rejected
    d.run()
    assert d.reasons == {1: "length"}
    assert 2 in d.rejected


def test_one_that_runs_goes_on_though_it_is_late(driver, request_of, clock, alone):
    d = timed(driver, clock)
    request = request_of(1, range(4), max_tokens=30, deadline_ms=100)
    d.submit(request)
    d.step()
    clock.now_s += 10.0
    d.run()
    assert (d.tokens[1], d.reasons[1]) == alone(request, 64)


def test_one_that_another_engine_has_begun_is_not_refused(driver, request_of, clock):
    from msgspec.structs import replace

    d = timed(driver, clock)
    d.submit(replace(request_of(1, range(8), deadline_ms=1, due_tokens=8), output_start=6))
    d.run()
    assert d.reasons == {1: "length"}


def test_a_better_priority_takes_the_place_of_a_worse_one(driver, request_of, clock, alone):
    d = timed(driver, clock, max_num_seqs=2, max_output_rows=2)
    worse = [request_of(i, range(4), max_tokens=20, priority=5) for i in (1, 2)]
    d.submit(*worse)
    for _ in range(8):
        d.step()
    d.submit(request_of(3, range(4), max_tokens=4, priority=1))
    for _ in range(4):
        d.step()
    assert d.tokens.get(3), "it has to wait"
    assert d.frames[-1].stats.preemptions == 1
    d.run()
    for request in worse:
        assert (d.tokens[request.id], d.reasons[request.id]) == alone(request, 64)


def test_a_long_prompt_lets_a_more_urgent_one_pass_until_it_has_waited(driver, request_of, clock):
    d = timed(driver, clock, num_blocks=200, max_model_len=800)
    d.submit(request_of(1, [k % 50 for k in range(600)], max_tokens=2))
    for _ in range(4):
        d.step()
    d.submit(request_of(2, range(8), max_tokens=2, deadline_ms=2000))
    for _ in range(3):
        d.step()
    assert d.tokens.get(2), "it waits for the whole prompt"
    assert not d.tokens.get(1)
    clock.now_s += PATIENCE_S
    d.submit(request_of(3, range(8), max_tokens=2, deadline_ms=30_000))
    d.run()
    firsts = [one for frame in d.frames for one in frame.ids]
    assert firsts.index(1) < firsts.index(3)


@pytest.mark.parametrize(
    ("flood", "most_s"),
    [({"priority": -5}, STARVED_S + 3.0), ({"deadline_ms": 2500}, PATIENCE_S + 3.0)],
)
def test_a_flood_of_more_urgent_requests_does_not_starve_another(driver, request_of, clock, flood, most_s):
    """More come than there is room for, all the time."""
    d = timed(driver, clock, num_blocks=200, max_num_seqs=2, max_output_rows=2)
    began_s, number = clock.now_s, 100
    while not d.tokens.get(1):
        while len(d.core.table.waiting) < 6:
            d.core.submit(request_of(number, range(16), max_tokens=20, **flood))
            number += 1
        if clock.now_s > began_s + 1.0 and d.core.table.get(1) is None:
            d.core.submit(request_of(1, range(16), max_tokens=2))
        d.step()
        assert clock.now_s <= began_s + 1.0 + most_s, "it starves"
    d.run()
    assert len(d.reasons) > 20


def test_an_urgent_flood_leaves_room_for_other_tenants(driver, request_of, clock):
    """A newcomer's first token comes as soon as without priorities."""
    d = timed(driver, clock, max_num_seqs=9, max_output_rows=9, num_blocks=64)
    hold_times(d, 8)
    flood = [request_of(100 + i, range(40), tenant="a", max_tokens=20, priority=-i) for i in range(60)]
    d.submit(*flood)
    for _ in range(30):
        d.step()
    d.submit(request_of(1, range(16), tenant="b"))
    assert steps_to_first_token(d, 1) <= 4
    d.run()


def test_nobody_yields_to_a_better_priority_for_ever(driver, request_of, clock):
    d = timed(driver, clock, max_num_seqs=1, max_output_rows=1)
    victim = request_of(1, range(4), max_tokens=40, priority=5)
    d.submit(victim)
    for number in range(2, 12):
        for _ in range(12):
            d.step()
        d.submit(request_of(number, range(4), max_tokens=2, priority=0))
    d.step()
    d.run()
    assert d.frames[-1].stats.preemptions <= MOST_FOR_PRIORITY
    assert len(d.reasons) == 11


def test_the_worst_priority_yields_its_pages(driver, request_of, clock):
    d = timed(driver, clock, num_blocks=12, max_model_len=40)
    for number, priority in ((1, 0), (2, 9), (3, 0)):
        d.submit(request_of(number, range(8), max_tokens=20, priority=priority))
        d.step()
    preempted = []
    preempt = d.core.table.preempt
    d.core.table.preempt = lambda sequence: (preempted.append(sequence.id), preempt(sequence))
    d.run()
    assert preempted
    assert preempted[0] == 2


@pytest.mark.parametrize("priorities", [(0, -100), (-100, 0), (3, -3)])
def test_priorities_are_those_of_a_tenant_alone(driver, request_of, clock, priorities):
    """However urgent one tenant's requests are, the other's share stays."""
    d = timed(driver, clock, max_num_seqs=4, max_output_rows=9)
    hold_times(d, 8)
    for i in range(300):
        own = {"tenant": "ab"[i % 2], "priority": priorities[i % 2], "max_tokens": 1 + i * 5 % 17}
        d.submit(request_of(i, range(1 + i * 7 % 23), **own))
    accounts = d.core.policy.accounts
    while {s.tenant.name for s in d.core.table.waiting.values()} != {"a", "b"}:
        d.step()
    while {s.tenant.name for s in d.core.table.waiting.values()} == {"a", "b"}:
        d.step()
    a, b = accounts.counter[:2]
    assert a > 500
    assert abs(a - b) <= 4 * 40 + 1024


urgent_requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 5), min_size=1, max_size=20),
        **claims,
        "background": st.booleans(),
        "max_tokens": st.integers(0, 14),
        "priority": st.integers(-1, 2),
        "deadline_ms": st.sampled_from([0, 0, 10**8]),
        "chunk_tokens": st.sampled_from([0, 3]),
    }
)


@settings(max_examples=150, deadline=None)
@given(sizes=sizes, schedule=st.lists(st.lists(urgent_requests, max_size=3), max_size=12))
def test_all_end_with_the_tokens_they_get_alone(driver, request_of, alone, sizes, schedule):
    d, sent = driver(**sizes), []
    hold_times(d, 6)
    for batch in schedule:
        new = [request_of(len(sent) + i, **fields) for i, fields in enumerate(batch)]
        sent += new
        d.submit(*new)
        d.step()
    d.run(max_steps=5000)
    for request in sent:
        check(d, request, alone, may_be_aborted=False)
