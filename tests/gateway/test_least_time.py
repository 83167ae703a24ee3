"""The policy that counts in milliseconds."""

from __future__ import annotations

import itertools

from test_policies import LONG, Engine, engines, flight, prompt, send

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routing import least_time
from firelane.gateway.engines.routing.least_time import (
    FIRST_TOKENS,
    LOOK,
    LeastTime,
    LongPrompts,
    OutputLengths,
)
from firelane.wire.frames import NewRequest, Sampling
from firelane.wire.page_names import PAGE_TOKENS

TOKENS = itertools.count()
"""Prompts that share nothing."""


def request(tokens, *, tenant="", max_tokens=1 << 20, session=b""):
    sampling = Sampling(max_tokens=max_tokens)
    new = NewRequest(id=1, prompt=prompt((next(TOKENS), tokens)), sampling=sampling, tenant=tenant)
    return InFlight(new, None, session)


def test_a_prompt_goes_where_its_pages_are_unless_the_queue_there_is_long():
    policy, some = LeastTime(), engines(0, 0, 0)
    home = send(policy, flight(LONG), some)
    home.prefill_tokens = 500
    longer = flight(LONG + prompt((8, 300)))
    assert send(policy, longer, some) is home
    assert longer.cached_tokens == 10 * PAGE_TOKENS
    home.prefill_tokens = 50_000
    assert send(policy, flight(LONG), some) is not home


def test_a_fast_engine_gets_a_long_prompt_in_spite_of_its_queue():
    slow = Engine("slow", step_ms=20.0, token_ms=1.0)
    fast = Engine("fast", prefill_tokens=3000, step_ms=20.0, token_ms=0.1)
    assert LeastTime().choose(request(1000), [slow, fast]) is fast
    assert LeastTime().choose(request(100), [slow, fast]) is slow


def test_the_time_of_its_output_counts():
    slow = Engine("slow", step_ms=40.0, token_ms=0.1)
    fast = Engine("fast", prefill_tokens=5000, step_ms=10.0, token_ms=0.1)
    assert LeastTime().choose(request(10, max_tokens=1), [slow, fast]) is slow
    assert LeastTime().choose(request(10, max_tokens=1000), [slow, fast]) is fast


def test_an_engine_that_has_told_nothing_is_taken_to_be_as_the_others():
    told, other = Engine("told", prefill_tokens=100, step_ms=5.0, token_ms=3.0), Engine("other")
    assert LeastTime().choose(request(10), [told, other]) is other


def test_equal_engines_take_turns_and_sessions_stay_together():
    policy, some = LeastTime(), engines(0, 0, 0)
    assert [send(policy, request(10), some).name for _ in range(6)] == [*"012012"]
    homes = [{send(policy, request(10, session=b"%d" % i), some).name for _ in range(3)} for i in range(20)]
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) > 1
    home = send(policy, request(10, session=b"0"), some)
    home.prefill_tokens = 1000
    assert send(policy, request(10, session=b"0"), some) is not home


def test_lengths_of_outputs_are_means_by_tenant():
    lengths = OutputLengths()
    assert lengths.expected(request(1)) == FIRST_TOKENS
    assert lengths.expected(request(1, max_tokens=5)) == 5
    for _ in range(100):
        lengths.ended(request(1, tenant="a"), 1000)
        lengths.ended(request(1, tenant="b"), 10)
    assert lengths.expected(request(1, tenant="a")) == 1000
    lengths.ended(request(1, tenant="b"), 110)
    assert 19 < lengths.expected(request(1, tenant="b")) < 21
    assert lengths.expected(request(1, tenant="c")) == FIRST_TOKENS


def test_tenants_that_were_away_longest_are_forgotten(monkeypatch):
    monkeypatch.setattr("firelane.gateway.engines.routing.least_time.MOST_TENANTS", 2)
    lengths = OutputLengths()
    for tenant in "abc":
        lengths.ended(request(1, tenant=tenant), 7)
    assert [lengths.expected(request(1, tenant=one)) for one in "abc"] == [FIRST_TOKENS, 7, 7]


def test_the_longest_hundredth_is_long_where_it_is_much_of_the_work():
    mixed, alike = LongPrompts(), LongPrompts()
    for i in range(5 * LOOK):
        mixed.note(50_000 if i % 100 == 99 else 200)
        alike.note(1000 + i % 7)
    assert mixed.least_tokens == 50_000
    assert [mixed.engines(number) for number in (2, 3, 4, 10)] == [0, 2, 2, 7]
    assert alike.engines(4) == 0


def test_long_prompts_wait_for_each_other_and_nobody_for_them(monkeypatch):
    monkeypatch.setattr(least_time, "LEAST_WORK", 0.05)
    policy, some = LeastTime(), engines(0, 0, 0, 0)
    for i in range(2 * LOOK):
        send(policy, request(40_000 if i % 100 == 99 else 4000), some)
    first = policy.choose(request(40_000), some)
    first.prefill_tokens = 100_000
    assert policy.choose(request(40_001), some) is first
    assert policy.choose(request(4001), some) is not first
    first.prefill_tokens = 2_000_000  # more than ten times its own
    assert policy.choose(request(40_002), some) is not first
    for engine in some:
        engine.prefill_tokens = 0 if engine is first else 50_000
    assert policy.choose(request(4002), some) is first
