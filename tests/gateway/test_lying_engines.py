"""Engines that say of their load what is not true: requests go on, and elsewhere once it has been noticed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from test_least_time import request
from test_policies import Engine

from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.ejection import OutlierEjection, OutlierRule, Wait
from firelane.gateway.engines.routing.least_time import LeastTime
from firelane.gateway.engines.routing.policies import LeastRequests, LeastTokens, PageAware
from firelane.wire.frames import Beat, EngineStats, StepFrame

NO_TIMES = [float("nan"), float("inf"), float("-inf"), -1.0, 1e300]


@dataclass(eq=False)
class Served(Engine):
    role: str = "both"


def link(name, *, running=0, own=0):
    """An engine of another host, which says that it runs so many sequences; own: of this gateway."""
    made = EngineLink(name=name, is_shared=True)
    made.receive(StepFrame(1, [], [], [], [], [], EngineStats(running=running)))
    for _ in range(own):
        made.requests.submit(request(10))
    return made


@pytest.mark.parametrize("value", NO_TIMES)
def test_what_is_no_time_counts_as_none(value):
    one, other = link("0"), link("1")
    one.receive(Beat(0.0, value, value))
    other.receive(Beat(0.0, 10.0, 1.0))
    assert (one.load.step_ms, one.load.token_ms) == (0.0, 0.0)
    assert LeastTime().choose(request(10), [one.load, other.load]) in (one.load, other.load)


@pytest.mark.parametrize("policy", [LeastRequests, LeastTokens, PageAware])
def test_what_a_gateway_has_sent_counts_at_least(policy):
    async def scenario():
        idle, busy = link("idle", running=-5, own=1).load, link("busy", running=10**18).load
        other = link("other").load
        assert (idle.sequences, busy.sequences) == (1, 10**18)
        assert policy().choose(request(10), [idle, busy, other]) is other

    asyncio.run(scenario())


def test_an_engine_that_says_it_is_fast_and_is_not_gets_nothing_for_a_while():
    rule, policy = OutlierRule(), LeastTime()
    ejection = OutlierEjection(rule)
    liar = Served("liar", step_ms=0.001, token_ms=0.0001)
    some = [Served("sound", step_ms=10.0, token_ms=1.0), liar, Served("other", step_ms=10.0, token_ms=1.0)]
    assert policy.choose(request(1000), ejection.admitted(some, 0.0)) is liar
    for _ in range(rule.waits):
        for engine in some:
            ejection.note(engine, Wait(1000, 20.0 if engine is liar else 1.0))
    assert policy.choose(request(1000), ejection.admitted(some, 0.0)) is not liar
