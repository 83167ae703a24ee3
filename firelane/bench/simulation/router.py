"""Routing policies on simulated engines: the share of prompt tokens found in caches, and the time to the
first token. The policies are the gateway's own; time is simulated, so that equal seeds give equal figures."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median

from numpy.random import default_rng

from firelane.bench.simulation.router_engine import PAGE_TOKENS, EngineSpeed, Job, TraceEngine
from firelane.bench.simulation.router_traces import TRACES, TraceSession
from firelane.bench.table import format_table, percentile
from firelane.errors import FirelaneError, UsageError
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routing.page_record import PageRecord
from firelane.gateway.engines.routing.policies import Policy, Random
from firelane.gateway.engines.routing.routing import POLICIES
from firelane.wire.frames import Finished, NewRequest, PagesAt, Sampling, Started, TokenLogprobs
from firelane.wire.page_names import page_names

SAMPLING = Sampling()


@dataclass(frozen=True, kw_only=True)
class RouterFigures:
    """One policy on one trace. hit_ratio: of prompt tokens; infinite_hit_ratio: of one engine that forgets
    nothing, for the same requests in the same order."""

    trace: str
    policy: str
    seed: int
    requests: int
    hit_ratio: float
    infinite_hit_ratio: float
    ttft_p50_s: float
    ttft_p99_s: float
    lasted_s: float

    @property
    def of_infinite(self) -> float:
        return self.hit_ratio / self.infinite_hit_ratio if self.infinite_hit_ratio else 1.0


class _NoSink:
    """Simulated requests have no client."""

    def on_started(self, started: Started, planned_s: float) -> None: ...
    def on_logprobs(self, entry: TokenLogprobs) -> None: ...
    def on_embedding(self, values: bytes) -> None: ...
    def ending(self, finished: Finished) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def on_tokens(self, tokens: Sequence[int], now_s: float) -> None: ...
    def on_waiting(self) -> None: ...
    def on_pages(self, pages: PagesAt) -> None: ...
    def on_end(self) -> None: ...
    def on_failed(self, error: FirelaneError) -> None: ...


class _InfiniteCache:
    """The pages of all requests so far. hits: prompt tokens found."""

    def __init__(self) -> None:
        self._pages: set[int] = set()
        self.hits = 0

    def ask(self, job: Job) -> None:
        found = 0
        while found < len(job.names) and job.names[found] in self._pages:
            found += 1
        self.hits += min(found * PAGE_TOKENS, job.prompt_tokens - 1)
        self._pages.update(job.names)

    def ended(self, job: Job) -> None:
        request = job.flight.request
        self._pages.update(page_names(request.salt, request.prompt + job.output, PAGE_TOKENS))


class Simulation:
    """Sessions, a policy, and engines, until all has been answered. ttfts_s: of all requests."""

    def __init__(
        self, sessions: Iterable[TraceSession], policy: Policy, engines: int, speed: EngineSpeed
    ) -> None:
        self.now_s = 0.0
        self.ttfts_s: list[float] = []
        self.prompt_tokens = self.cached_tokens = 0
        self.infinite = _InfiniteCache()
        self._policy = policy
        self._engines = [TraceEngine(str(i), speed) for i in range(engines)]
        self._ids = count()
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for session in sessions:
            self._at(session.start_s, partial(self._send, session, 0, b""))

    def run(self) -> None:
        while self._events:
            self.now_s, _, act = heapq.heappop(self._events)
            act()

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), act))

    def _send(self, session: TraceSession, turn: int, history: bytes) -> None:
        prompt = (history or session.prefix()) + session.text(turn, output=False)
        request = NewRequest(id=next(self._ids), prompt=prompt, sampling=SAMPLING)
        flight = InFlight(request, _NoSink(), session.key)
        names, output = page_names(b"", prompt, PAGE_TOKENS), session.text(turn, output=True)
        job = Job(flight, output, names, on_end=partial(self._ended, session, turn, self.now_s))
        self.infinite.ask(job)
        engine = self._policy.choose(flight, self._engines)
        self._policy.sent(flight, engine)
        engine.submit(job)
        if not engine.is_busy:
            engine.is_busy = True
            self._begin_step(engine)

    def _begin_step(self, engine: TraceEngine) -> None:
        self._at(engine.begin(self.now_s), partial(self._end_step, engine))

    def _end_step(self, engine: TraceEngine) -> None:
        for job in engine.finish(self.now_s):
            job.on_end(job)
        if engine.sequences:
            self._begin_step(engine)
        else:
            engine.is_busy = False

    def _ended(self, session: TraceSession, turn: int, arrived_s: float, job: Job) -> None:
        self._policy.ended(job.flight, len(job.output) // 4)
        self.ttfts_s.append(job.first_s - arrived_s)
        self.prompt_tokens += job.prompt_tokens
        self.cached_tokens += job.cached
        self.infinite.ended(job)
        if turn + 1 < len(session.turns):
            history = job.flight.request.prompt + job.output
            pause_s = session.turns[turn].pause_s
            self._at(self.now_s + pause_s, partial(self._send, session, turn + 1, history))


def simulate(
    trace: str, policy: str, *, engines: int = 4, seed: int = 0, speed: EngineSpeed | None = None
) -> RouterFigures:
    """The figures of one policy on one trace."""
    sessions = TRACES[trace](default_rng(seed))
    chosen = Random(seed) if policy == "random" else POLICIES[policy](PageRecord())
    run = Simulation(sessions, chosen, engines, speed or EngineSpeed())
    run.run()
    return RouterFigures(
        trace=trace,
        policy=policy,
        seed=seed,
        requests=len(run.ttfts_s),
        hit_ratio=run.cached_tokens / run.prompt_tokens,
        infinite_hit_ratio=run.infinite.hits / run.prompt_tokens,
        ttft_p50_s=percentile(run.ttfts_s, 50),
        ttft_p99_s=percentile(run.ttfts_s, 99),
        lasted_s=run.now_s,
    )


def run_router(
    traces: Sequence[str], policies: Sequence[str], *, engines: int, seeds: int
) -> list[RouterFigures]:
    """All policies on all traces, each with several seeds. Raises UsageError."""
    for given, known, what in ((traces, TRACES, "trace"), (policies, POLICIES, "policy")):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise UsageError(f"no {what} '{unknown[0]}': there are {', '.join(known)}")
    return [
        simulate(trace, policy, engines=engines, seed=seed)
        for trace in traces or TRACES
        for policy in policies or POLICIES
        for seed in range(seeds)
    ]


def format_router(figures: Sequence[RouterFigures]) -> str:
    """A row for each trace and policy: medians over the seeds."""
    header = (
        "trace",
        "policy",
        "requests",
        "hit ratio",
        "of infinite",
        "TTFT p50 ms",
        "TTFT p99 ms",
        "all s",
    )
    groups: dict[tuple[str, str], list[RouterFigures]] = {}
    for one in figures:
        groups.setdefault((one.trace, one.policy), []).append(one)
    return format_table(header, [(trace, *_row(policy, own)) for (trace, policy), own in groups.items()])


def _row(policy: str, figures: Sequence[RouterFigures]) -> tuple[str, ...]:
    def middle(read: Callable[[RouterFigures], float]) -> float:
        return median(map(read, figures))

    return (
        policy,
        f"{middle(lambda one: one.requests):.0f}",
        f"{middle(lambda one: one.hit_ratio):.3f}",
        f"{middle(lambda one: one.of_infinite):.3f}",
        f"{middle(lambda one: 1000 * one.ttft_p50_s):.0f}",
        f"{middle(lambda one: 1000 * one.ttft_p99_s):.0f}",
        f"{middle(lambda one: one.lasted_s):.1f}",
    )
