"""The simulation of routing policies: engines, traces, and what the policies make of them."""

from __future__ import annotations

import pytest
from numpy.random import default_rng

from firelane.bench.simulation.router import Simulation, format_router, run_router, simulate
from firelane.bench.simulation.router_engine import EngineSpeed
from firelane.bench.simulation.router_traces import TRACES, TraceSession, Turn
from firelane.errors import UsageError
from firelane.gateway.engines.routing.policies import LeastRequests, LeastTokens

SPEED = EngineSpeed(prefill_tokens_per_s=1000.0, step_s=0.01, sequence_s=0.001, chunk_tokens=500)


def play(*sessions, policy=None, engines=1, speed=SPEED):
    simulation = Simulation(sessions, policy or LeastTokens(), engines, speed)
    simulation.run()
    return simulation


def session(number, *turns, start_s=0.0, **changes):
    return TraceSession(number, start_s, turns, **changes)


def test_a_prompt_takes_its_steps():
    simulation = play(session(0, Turn(1000, 3, 0.0)))
    assert simulation.ttfts_s == pytest.approx([1.02])
    assert simulation.now_s == pytest.approx(1.02 + 2 * 0.011)


def test_prompts_are_computed_in_their_order_beside_decode():
    simulation = play(session(0, Turn(500, 100, 0.0)), session(1, Turn(500, 1, 0.0), start_s=0.1))
    assert sorted(simulation.ttfts_s) == pytest.approx([0.51, 0.51 + 0.511 - 0.1])


def test_a_second_turn_finds_the_first_one():
    simulation = play(session(0, Turn(640, 64, 1.0), Turn(64, 1, 0.0)))
    assert (simulation.prompt_tokens, simulation.cached_tokens) == (640 + 768, 704)
    assert simulation.infinite.hits == 704


def test_a_cache_without_room_forgets_the_least_recently_used():
    small = EngineSpeed(kv_tokens=1024)
    turns = Turn(640, 1, 10.0), Turn(64, 1, 0.0)
    alone = play(session(0, *turns), speed=small)
    beside = play(session(0, *turns), session(1, Turn(1024, 1, 0.0), start_s=5.0), speed=small)
    assert (alone.cached_tokens, beside.cached_tokens) == (640, 0)
    assert beside.infinite.hits == 640


def test_least_requests_sends_a_short_prompt_behind_a_long_one():
    sessions = [
        session(0, Turn(20_000, 1, 0.0)),
        *(session(i, Turn(10, 2000, 0.0), start_s=0.01) for i in (1, 2)),
        session(3, Turn(10, 1, 0.0), start_s=0.1),
    ]
    worst = {
        type(policy): sorted(play(*sessions, policy=policy, engines=2).ttfts_s)[-2]
        for policy in (LeastTokens(), LeastRequests())
    }
    assert worst[LeastTokens] < 1 < worst[LeastRequests]


@pytest.mark.parametrize("trace", TRACES)
def test_traces_are_those_of_their_seed(trace):
    first, again, other = ([*TRACES[trace](default_rng(seed))] for seed in (0, 0, 1))
    assert first == again != other
    some = first[0]
    assert some.text(0, output=False) == again[0].text(0, output=False)
    assert len(some.text(0, output=True)) == 4 * some.turns[0].output_tokens


def test_long_prompts_are_rare():
    lengths = [one.turns[0].new_tokens for one in TRACES["long-tail"](default_rng(0))]
    assert 100 <= min(lengths) < 101
    assert 50_000 < max(lengths) <= 100_000
    assert sum(length > 10_000 for length in lengths) == pytest.approx(0.01 * len(lengths), rel=0.3)


def test_pages_aware_finds_what_one_infinite_engine_would():
    aware, random = (simulate("agents", policy) for policy in ("page-aware", "random"))
    assert aware.of_infinite >= 0.95
    assert random.of_infinite < 0.7
    assert aware.ttft_p99_s < random.ttft_p99_s / 2
    table = format_router([aware, random])
    assert [line.split("|")[2].strip() for line in table.splitlines()[2:]] == ["page-aware", "random"]


@pytest.mark.parametrize(("traces", "policies"), [(["nope"], []), ([], ["nope"])])
def test_unknown_names(traces, policies):
    with pytest.raises(UsageError, match="'nope': there are"):
        run_router(traces, policies, engines=1, seeds=1)
