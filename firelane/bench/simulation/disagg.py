"""Prefill and decode apart beside engines that do both, as many of them, on a described device.

Engines (scheduler, KV cache, pulls of pages) and router are those that serve; steps take the time that the
cost model of `firelane plan` gives, and time is simulated: equal seeds give equal figures on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from firelane.bench.simulation.disagg_client import SimulatedClient
from firelane.bench.simulation.disagg_clock import Timeline
from firelane.bench.simulation.disagg_engine import EngineKind, SimulatedEngine
from firelane.bench.simulation.disagg_loads import LOADS, RequestArrival, arrivals, prompt_of
from firelane.bench.simulation.disagg_model import DisaggMachine
from firelane.bench.simulation.disagg_roles import SimulatedRoles
from firelane.bench.simulation.disagg_transfer import SimulatedTransfer
from firelane.bench.table import format_table, percentile
from firelane.errors import UsageError
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.roles.role_controller import Role, RoleController
from firelane.gateway.engines.routing.routing import Router
from firelane.wire.frames import (
    NewRequest,
    Sampling,
    StepFrame,
)

HOP_S = 0.0003
"""From the gateway to an engine, and back."""


@dataclass(frozen=True, kw_only=True)
class DisaggFigures:
    """One set of engines under one load. prefill: engines for it, 0 where all do both. itl: of all gaps
    between two tokens. Seconds."""

    load: str
    rate: float
    seed: int
    engines: int
    prefill: int
    chunk_tokens: int
    requests: int
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p90_s: float
    itl_p99_s: float
    tpot_p90_s: float
    lasted_s: float


class DisaggRun:
    """Arrivals, a router, and engines, until all has been answered."""

    def __init__(
        self,
        requests: Iterable[RequestArrival],
        roles: Sequence[str],
        kind_of: KindOf,
        controller: RoleController | None = None,
        router: Router | None = None,
    ) -> None:
        """controller: None = engines keep their roles. router: None = that of least tokens."""
        self.timeline = Timeline()
        self.clients: list[SimulatedClient] = []
        self._router = router or Router()
        self._engines = [
            SimulatedEngine(str(i), role, kind_of(role), self.timeline, self._on_frame)
            for i, role in enumerate(roles)
        ]
        peers: dict[str, SimulatedTransfer] = {}
        if "prefill" in roles:
            for engine in self._engines:
                engine.connect(peers)
        self._expected = 0
        for number, arrival in enumerate(requests):
            self._expected += 1
            self.timeline.at(arrival.at_s, lambda n=number, a=arrival: self._arrive(n, a))
        self.roles = None if controller is None else self._controlled(controller)

    def run(self) -> None:
        self.timeline.run()
        assert not self._goes_on()

    @property
    def split(self) -> tuple[int, int]:
        """Engines for prefill, and for decode."""
        roles = [engine.role for engine in self._engines]
        return roles.count("prefill"), roles.count("decode")

    def _controlled(self, controller: RoleController) -> SimulatedRoles:
        return SimulatedRoles(
            controller, self.timeline, self._engines, self.clients, self._change_role, self._goes_on
        )

    def _goes_on(self) -> bool:
        return len(self.clients) < self._expected or not all(one.has_ended for one in self.clients)

    def _change_role(self, engine: SimulatedEngine, role: Role) -> None:
        """Change the role of an engine, as roles.change_role does."""
        engine.role = role
        if role == "prefill":
            for flight in engine.take_back():
                flight.have_pages_of(engine.engine_id, engine.pages_address)
                self._send(flight)

    def _arrive(self, number: int, arrival: RequestArrival) -> None:
        client = SimulatedClient(arrival)
        self.clients.append(client)
        sampling = Sampling(seed=number, max_tokens=arrival.output_tokens)
        prompt = prompt_of(number, arrival.prompt_tokens)
        request = NewRequest(id=number, prompt=prompt, sampling=sampling, tenant=arrival.tenant)
        self._send(InFlight(request, client))

    def _send(self, flight: InFlight) -> None:
        """Send a request, as ReplicaSet does."""
        takers = [engine for engine in self._engines if flight.id not in engine.leaving]
        route = self._router.route(flight, takers)
        assert route is not None
        engine, then = route.engine, route.next_engine
        flight.hands_over = then is not None
        request = flight.continuation()
        self._later(lambda: engine.submit(request, flight))
        if then is not None:
            flight.next_engine = then.engine_id
            expected = flight.announcement(engine.engine_id, engine.pages_address)
            self._later(lambda: then.submit(expected))

    def _on_frame(self, engine: SimulatedEngine, frame: StepFrame) -> None:
        self._later(lambda: self._deliver(engine, frame))

    def _deliver(self, engine: SimulatedEngine, frame: StepFrame) -> None:
        """Deliver a step's tokens, as EngineLink does."""
        now_s = self.timeline.now_s
        for request_id, token, _ in frame.each_token():
            flight = engine.flights.get(request_id)
            if flight is None:  # it was taken back
                continue
            flight.tokens.append(token)
            flight.sink.on_tokens((token,), now_s)
        engine.settle()
        for finished in frame.finished:
            flight = engine.flights.pop(finished.id, None)
            if flight is None:
                engine.leaving.discard(finished.id)
                continue
            engine.settle()
            if flight.goes_on(finished.reason):
                flight.have_pages_of(engine.engine_id, engine.pages_address)
                self._send(flight)
            else:
                flight.finish()

    def _later(self, act: Callable[[], None]) -> None:
        self.timeline.at(self.timeline.now_s + HOP_S, act)


KindOf = Callable[[str], EngineKind]
"""The kind of engine for a role."""


def measure(run: DisaggRun, warm_up_s: float) -> dict[str, Any]:
    """Percentiles over all requests that came after the warm-up."""
    run.run()
    clients = [client for client in run.clients if client.arrived_s >= warm_up_s]
    gaps = [gap for client in clients for gap in client.gaps_s]
    ttfts = [client.times_s[0] - client.arrived_s for client in clients]
    tpots = [sum(client.gaps_s) / len(client.gaps_s) for client in clients if client.gaps_s]
    return {
        "requests": len(clients),
        "ttft_p50_s": percentile(ttfts, 50),
        "ttft_p90_s": percentile(ttfts, 90),
        "ttft_p99_s": percentile(ttfts, 99),
        "itl_p50_s": percentile(gaps, 50),
        "itl_p90_s": percentile(gaps, 90),
        "itl_p99_s": percentile(gaps, 99),
        "tpot_p90_s": percentile(tpots, 90),
        "lasted_s": run.timeline.now_s,
    }


@dataclass(frozen=True, kw_only=True)
class DisaggLoad:
    """name: of LOADS. seconds: of arrivals, of which those of the first warm_up_s are not counted."""

    name: str
    rate: float
    seconds: float
    warm_up_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class DisaggSetup:
    """So many engines, of which `prefill` are for prefill and the others for decode; 0: all do both.
    chunk_tokens: of a step; None: the device's default. Engines for decode take that of their device."""

    engines: int
    prefill: int = 0
    chunk_tokens: int | None = None

    @property
    def roles(self) -> list[str]:
        if not self.prefill:
            return ["both"] * self.engines
        return ["prefill"] * self.prefill + ["decode"] * (self.engines - self.prefill)


def simulate(machine: DisaggMachine, setup: DisaggSetup, load: DisaggLoad, seed: int) -> DisaggFigures:
    """Figures of one set of engines under one load."""
    requests = arrivals(load.name, load.rate, load.seconds + load.warm_up_s, seed)
    kind, decode_kind = machine.kind(setup.chunk_tokens), machine.kind(None)
    run = DisaggRun(requests, setup.roles, lambda role: decode_kind if role == "decode" else kind)
    figures = measure(run, load.warm_up_s)
    return DisaggFigures(
        load=load.name,
        rate=load.rate,
        seed=seed,
        engines=setup.engines,
        prefill=setup.prefill,
        chunk_tokens=kind.limits.max_num_batched_tokens,
        **figures,
    )


def format_disagg(figures: Sequence[DisaggFigures]) -> str:
    """A row for each set of engines under each load: medians over the seeds; `better`: how many times, than
    the load's first row with the same seed."""
    header = (
        *("load", "requests/s", "engines", "chunk", "TTFT p50 ms", "TTFT p90 ms", "better", "TTFT p99 ms"),
        *("ITL p50 ms", "ITL p90 ms", "better", "ITL p99 ms", "better", "TPOT p90 ms"),
    )
    groups: dict[tuple[str, float], dict[tuple[int, int, int], list[DisaggFigures]]] = {}
    for one in figures:
        sets = groups.setdefault((one.load, one.rate), {})
        sets.setdefault((one.engines, one.prefill, one.chunk_tokens), []).append(one)
    rows = [_row(own, next(iter(sets.values()))) for sets in groups.values() for own in sets.values()]
    return format_table(header, rows)


def _row(own: Sequence[DisaggFigures], first: Sequence[DisaggFigures]) -> tuple[str, ...]:
    def ms(read: Callable[[DisaggFigures], float]) -> str:
        return f"{1000 * median(map(read, own)):.1f}"

    def better(read: Callable[[DisaggFigures], float]) -> str:
        return f"{median(read(a) / read(b) for a, b in zip(first, own, strict=True)):.2f}"

    one = own[0]
    engines = f"{one.prefill} + {one.engines - one.prefill}" if one.prefill else f"{one.engines} both"
    return (
        *(one.load, f"{one.rate:g}", engines, str(one.chunk_tokens)),
        *(ms(lambda f: f.ttft_p50_s), ms(lambda f: f.ttft_p90_s), better(lambda f: f.ttft_p90_s)),
        *(ms(lambda f: f.ttft_p99_s), ms(lambda f: f.itl_p50_s)),
        *(ms(lambda f: f.itl_p90_s), better(lambda f: f.itl_p90_s)),
        *(ms(lambda f: f.itl_p99_s), better(lambda f: f.itl_p99_s), ms(lambda f: f.tpot_p90_s)),
    )


def run_disagg(
    machine: DisaggMachine, setups: Sequence[DisaggSetup], loads: Sequence[DisaggLoad], seeds: int
) -> list[DisaggFigures]:
    """All sets of engines under all loads, each with several seeds. Raises UsageError."""
    for load in loads:
        if load.name not in LOADS:
            raise UsageError(f"no load '{load.name}': there are {', '.join(LOADS)}")
    for setup in setups:
        if setup.prefill >= setup.engines:
            raise UsageError(
                f"--prefill {setup.prefill}: of {setup.engines} engines at least one has to decode; "
                "give fewer, or more --engines"
            )
    return [
        simulate(machine, setup, load, seed) for load in loads for setup in setups for seed in range(seeds)
    ]
