"""A tenant beside another one's flood, over several engines: `python benchmarks/tenant_routing.py`.

One tenant sends more documents than the engines can compute, the other one little. Engines (scheduler, fair
shares of tenants, KV cache) and the gateway's router are those that serve, in simulated time on a described
device (as `firelane bench disagg`): equal seeds give equal figures on any machine.

"all tokens": the router counts the tokens of all tenants alike. "tokens before its own": those that the
engine's fair shares let come before the request's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from firelane import env
from firelane.bench.simulation.disagg import DisaggRun
from firelane.bench.simulation.disagg_client import SimulatedClient
from firelane.bench.simulation.disagg_engine import SimulatedEngine
from firelane.bench.simulation.disagg_loads import RequestArrival, arrivals
from firelane.bench.simulation.disagg_model import DisaggMachine
from firelane.bench.table import format_table, percentile
from firelane.gateway.engines.routing.page_record import PageRecord
from firelane.gateway.engines.routing.routing import POLICIES, Router

FLOOD, VISITOR = "flood", "visitor"
WAYS = ("all tokens", "tokens before its own")


class BlindRouter(Router):
    """A router to which an engine's prompts are all of one tenant."""

    def route(self, flight: Any, serving: Sequence[Any]) -> Any:
        route = super().route(flight, [_Blind(engine) for engine in serving])
        return route and route._replace(link=route.link.engine)


class _Blind:
    queued = None

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policy", action="append", choices=tuple(POLICIES))
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--flood", type=float, default=30.0, help="documents and chats a second of the flood")
    parser.add_argument("--visits", type=float, default=6.0, help="chats a second of the other tenant")
    parser.add_argument("--visitor", default="chat", help="a load of `bench disagg`")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    machine = DisaggMachine.find("h100", None, env.read().cache_dir, 25.0)
    rows: list[tuple[str, ...]] = []
    for policy in options.policy or ("least-tokens", "page-aware"):
        runs = {way: [_run(machine, options, policy, way, s) for s in range(options.seeds)] for way in WAYS}
        rows += [_row(policy, way, runs[way], runs[WAYS[0]]) for way in WAYS]
    header = (
        "policy",
        "router counts",
        "TTFT p50 ms",
        "p90 ms",
        "p99 ms",
        "p99 better",
        "the flood's tokens/s",
    )
    print(f"{options.engines} engines, {options.seeds} seeds; TTFT of the other tenant ({options.visitor})\n")
    print(format_table(header, rows))


def _requests(options: argparse.Namespace, seed: int) -> Iterator[RequestArrival]:
    flood = arrivals("documents", options.flood, options.seconds, seed)
    visits = arrivals(options.visitor, options.visits, options.seconds, seed + 1000)
    yield from (one._replace(tenant=FLOOD) for one in flood)
    yield from (one._replace(tenant=VISITOR) for one in visits)


def _run(
    machine: DisaggMachine, options: argparse.Namespace, policy: str, way: str, seed: int
) -> tuple[list[float], float]:
    """TTFT of the visitor's requests in seconds, and tokens of the flood a second."""
    make = BlindRouter if way == WAYS[0] else Router
    record = PageRecord()
    router = make(POLICIES[policy](record), POLICIES[policy](record))
    kind = machine.kind(None)
    run = DisaggRun(_requests(options, seed), ["both"] * options.engines, lambda _: kind, router=router)
    run.run()
    ttfts = [c.times_s[0] - c.arrived_s for c in run.clients if c.tenant == VISITOR]
    return ttfts, _served(run.clients, options.seconds)


def _served(clients: Sequence[SimulatedClient], seconds: float) -> float:
    """Prompt tokens of the flood, a second, whose first token came while requests arrived."""
    in_time = (c for c in clients if c.tenant == FLOOD and c.times_s[0] <= seconds)
    return sum(c.prompt_tokens for c in in_time) / seconds


def _row(
    policy: str,
    way: str,
    runs: Sequence[tuple[list[float], float]],
    first: Sequence[tuple[list[float], float]],
) -> tuple[str, ...]:
    def at(share: int) -> str:
        return f"{1000 * median(percentile(ttfts, share) for ttfts, _ in runs):.1f}"

    better = median(percentile(a, 99) / percentile(b, 99) for (a, _), (b, _) in zip(first, runs, strict=True))
    return policy, way, at(50), at(90), at(99), f"{better:.2f}", f"{median(s for _, s in runs):,.0f}"


if __name__ == "__main__":
    main()
