"""The simulation of engines with and without roles: real scheduling and real pulls, in simulated time."""

from __future__ import annotations

import pytest

from firelane.bench.simulation.disagg import (
    DisaggLoad,
    DisaggRun,
    DisaggSetup,
    format_disagg,
    run_disagg,
)
from firelane.bench.simulation.disagg_loads import LOADS, RequestArrival, arrivals
from firelane.bench.simulation.disagg_model import DisaggMachine
from firelane.errors import UsageError
from firelane.gateway.engines.roles.role_controller import RoleController, RoleRule
from firelane.gateway.engines.roles.role_targets import RoleTargets


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return DisaggMachine.find("h100", None, tmp_path_factory.mktemp("cache"), 25.0)


class Once:
    """A controller that gives one engine this role, and then no other one."""

    rule = RoleRule(interval_s=0.2)

    def __init__(self, role):
        self.roles = [role]

    def decide(self, *_):
        return self.roles.pop() if self.roles else None


def play(machine, roles, *requests, chunk=None):
    run = DisaggRun(requests, roles, lambda _: machine.kind(chunk))
    run.run()
    return run.clients


def test_a_prompt_takes_what_the_plan_says(machine):
    (client,) = play(machine, ["both"], RequestArrival(0.0, 2048, 3))
    assert client.times_s[0] == pytest.approx(0.063, rel=0.2)
    assert all(gap == pytest.approx(0.006, rel=0.2) for gap in client.gaps_s)


def test_a_long_prompt_holds_up_only_those_beside_it(machine):
    requests = RequestArrival(0.0, 100, 100), RequestArrival(0.1, 20_000, 2)
    together = play(machine, ["both"], *requests)
    apart = play(machine, ["prefill", "decode"], *requests)
    assert max(together[0].gaps_s) > 8 * max(apart[0].gaps_s)
    assert apart[1].times_s[0] <= together[1].times_s[0]


def test_pages_are_pulled_and_not_computed_again(machine):
    """A decode step of the hand-over takes no longer than one of a short prompt."""
    (client,) = play(machine, ["prefill", "decode"], RequestArrival(0.0, 20_000, 4))
    assert max(client.gaps_s) < 0.03


def test_a_slow_link_costs_the_second_token_alone(tmp_path):
    slow = DisaggMachine.find("h100", None, tmp_path, 0.2)
    (client,) = play(slow, ["prefill", "decode"], RequestArrival(0.0, 20_000, 4))
    assert client.gaps_s[0] > 0.1
    assert max(client.gaps_s[1:]) < 0.01


def test_a_prompt_at_an_engine_for_decode_holds_nobody_up_for_long(machine):
    """While the engine for prefill is busy, one for decode computes the next prompt: not faster than that
    one, which takes chunks of 2,048 tokens, but those that decode beside it wait for a short one."""
    busy = [RequestArrival(0.0, 200, 150), RequestArrival(0.1, 30_000, 2), RequestArrival(0.11, 20_000, 2)]
    stream, _, prompt = play(machine, ["prefill", "decode"], *busy)
    assert 0.6 < prompt.times_s[0] - prompt.arrived_s < 2.0
    assert len([gap for gap in stream.gaps_s if gap > 0.009]) > 20
    assert max(stream.gaps_s) < 0.03


def test_engines_for_decode_compute_what_would_wait_longer_elsewhere(machine):
    """Two of four prompts that come at once: they would wait for as long as they take."""
    streams = [RequestArrival(0.0, 200, 200), RequestArrival(0.001, 200, 200)]
    prompts = [RequestArrival(0.1 + 0.001 * i, 16_000, 2) for i in range(4)]
    clients = play(machine, ["prefill", "prefill", "decode", "decode"], *streams, *prompts)
    ttfts = [client.times_s[0] - client.arrived_s for client in clients[2:]]
    assert max(ttfts) < 1.6 * min(ttfts)
    assert max(max(client.gaps_s) for client in clients[:2]) < 0.03


def test_engines_for_prefill_take_longer_steps(machine):
    """Nobody waits for them between two tokens."""
    setup = DisaggSetup(engines=2, prefill=1, chunk_tokens=machine.doubled_chunk)
    load = DisaggLoad(name="summaries", rate=0.5, seconds=4.0, warm_up_s=0.5)
    (long,) = run_disagg(machine, [setup], [load], 1)
    (usual,) = run_disagg(machine, [DisaggSetup(engines=2, prefill=1)], [load], 1)
    assert (long.chunk_tokens, usual.chunk_tokens) == (4096, 2048)
    assert long.ttft_p90_s < usual.ttft_p90_s
    assert long.itl_p90_s == pytest.approx(usual.itl_p90_s, rel=0.05)


def test_a_controller_gives_prompts_another_engine(machine):
    """They come faster than three engines compute them, of which two decode; streams that the one had go on
    elsewhere."""
    requests = [RequestArrival(0.04 * i, 4000, 8) for i in range(160)]
    controller = RoleController(RoleTargets(ttft_s=0.2, itl_s=0.1), RoleRule(interval_s=1.0, dwell_s=3.0))
    roles = ["prefill", "decode", "decode"]
    run = DisaggRun(requests, roles, lambda _: machine.kind(None), controller)
    run.run()
    assert run.roles.changes[0].role == "prefill"
    assert all(len(client.times_s) == 8 for client in run.clients)


def test_a_prompt_that_is_taken_back_goes_on_at_another_engine(machine):
    """An engine for decode becomes one for prefill while it computes a whole prompt: it has the least work,
    and has not let go of that prompt."""
    requests = RequestArrival(0.0, 30_000, 4), RequestArrival(0.01, 20_000, 4)
    run = DisaggRun(requests, ["prefill", "decode"], lambda _: machine.kind(None), Once("prefill"))
    run.run()
    assert run.split == (2, 0)
    assert [len(client.times_s) for client in run.clients] == [4, 4]


def test_equal_seeds_give_equal_figures(machine):
    setups = [DisaggSetup(engines=2), DisaggSetup(engines=2, prefill=1)]
    loads = [DisaggLoad(name="chat", rate=4.0, seconds=1.0, warm_up_s=0.5)]
    first, second = (run_disagg(machine, setups, loads, 1) for _ in range(2))
    assert first == second
    table = format_disagg(first).splitlines()
    assert "2 both" in table[2]
    assert "1 + 1" in table[3]


@pytest.mark.parametrize("load", LOADS)
def test_loads_come_at_their_rate(load):
    requests = list(arrivals(load, 50.0, 20.0, seed=1))
    assert len(requests) == pytest.approx(1000, rel=0.15)
    assert all(one.prompt_tokens > 0 and one.output_tokens > 0 for one in requests)


def test_what_cannot_be_simulated_is_refused(machine):
    load = DisaggLoad(name="nothing", rate=1.0, seconds=1.0)
    with pytest.raises(UsageError, match="there are conversation"):
        run_disagg(machine, [DisaggSetup(engines=2)], [load], 1)
    load = DisaggLoad(name="chat", rate=1.0, seconds=1.0)
    with pytest.raises(UsageError, match="at least one has to decode"):
        run_disagg(machine, [DisaggSetup(engines=2, prefill=2)], [load], 1)
