"""Engines that can still keep a request's deadline come before those that cannot."""

from __future__ import annotations

import math
import time

import pytest
from test_policies import Engine, prompt

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routing.policies import in_time
from firelane.gateway.engines.routing.routing import POLICIES, Router
from firelane.wire.frames import NewRequest, Sampling


def flight(tokens=100, *, deadline_ms=0, due_tokens=1, session=b""):
    request = NewRequest(
        id=1,
        prompt=prompt((7, tokens)),
        sampling=Sampling(max_tokens=1000),
        deadline_ms=deadline_ms,
        due_tokens=due_tokens,
    )
    return InFlight(request, None, session)


def engine(name, prefill_tokens=0, token_ms=1.0, step_ms=10.0):
    made = Engine(name, prefill_tokens, token_ms=token_ms, step_ms=step_ms)
    made.role, made.engine_id = "both", ""
    return made


def names(engines):
    return [one.name for one in engines]


def test_without_a_deadline_all_engines_can():
    engines = [engine("a", 10**9), engine("b")]
    assert in_time(flight(), engines) is engines


def test_what_lies_before_the_request_and_its_own_prompt_count():
    engines = [engine("busy", 900), engine("idle"), engine("slow", token_ms=20.0)]
    assert names(in_time(flight(deadline_ms=60_000), engines)) == ["busy", "idle", "slow"]
    assert names(in_time(flight(deadline_ms=800), engines)) == ["idle"]


def test_the_tokens_that_are_due_count():
    engines = [engine("slow", step_ms=100.0), engine("fast", 500, step_ms=5.0)]
    assert names(in_time(flight(deadline_ms=2000), engines)) == ["slow", "fast"]
    assert names(in_time(flight(deadline_ms=2000, due_tokens=100), engines)) == ["fast"]
    begun = flight(deadline_ms=2000, due_tokens=100)
    begun.tokens.fromlist([5] * 90)
    assert names(in_time(begun, engines)) == ["slow", "fast"]


def test_where_none_can_or_none_has_told_its_times_all_are_left():
    engines = [engine("a", 900), engine("b", 5000)]
    assert names(in_time(flight(deadline_ms=1), engines)) == ["a", "b"]
    silent = [engine("a", 10**6, 0.0, 0.0), engine("b", 5000)]
    assert names(in_time(flight(deadline_ms=100), silent)) == ["a"]


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_chooses_among_those_that_can(name):
    """A short prompt alone tempts the policy: many requests in flight at the engine that can."""
    router = Router.of(name)
    slow, fast = engine("slow", 0, token_ms=50.0), engine("fast", 3000, token_ms=0.1)
    fast.sequences = 50
    for _ in range(5):
        one = flight(deadline_ms=2000, session=b"s")
        assert router.route(one, [slow, fast]).engine is fast


def test_the_deadline_of_a_request_in_flight_is_a_time_of_this_process():
    before_s = time.monotonic()
    one = flight(deadline_ms=5000)
    assert before_s + 5 <= one.due_s <= time.monotonic() + 5
    assert flight().due_s == math.inf
    assert 0 < one.continuation().deadline_ms <= 5000
    one.due_s = before_s - 1
    assert one.continuation().deadline_ms == 1
