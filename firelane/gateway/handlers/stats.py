"""GET /stats: the state of the server in one JSON object, for the dashboard and for scripts.

Counters and histograms are those of /metrics, as they stand: a reader takes the difference of two answers to
see what lies between them. Making one costs the server no more than a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from firelane.gateway.exchange import Exchange
from firelane.gateway.parts import Parts
from firelane.gateway.router import describe
from firelane.gateway.routes import Doc, Route
from firelane.telemetry.metrics import Counter, Histogram

NO_STORE = b"cache-control: no-store\r\n"


class Loading(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine does before it serves; done and total are in `unit`s."""

    stage: str
    done: float
    total: float
    unit: str


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """state: starting, ready, draining or dead. reason: why it does not serve. What follows is None until
    the engine has once been ready.
    """

    state: str
    reason: str
    loading: Loading | None
    max_num_seqs: int | None
    max_model_len: int | None
    block_tokens: int | None
    weights_bytes: int | None
    kv_bytes: int | None
    load_s: float | None


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """running, waiting: sequences in the engine now. ended: by finish reason. answers: by HTTP status."""

    running: int
    waiting: int
    ended: dict[str, int]
    answers: dict[str, int]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram since the start. counts: observations up to each of bounds_s and above the one before it;
    the last one counts those above all bounds.
    """

    bounds_s: list[float]
    counts: list[int]
    sum_s: float


class TenantUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tenant since the start. cached_tokens are among prompt_tokens. cost: in the currency of the
    price file.
    """

    name: str
    requests: int
    rejected: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    cost: float


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """now_s: the clock of this answer, to take differences by. started: Unix time; a new one means that all
    counters began again.
    """

    version: str
    models: tuple[str, ...]
    started: int
    now_s: float
    uptime_s: float
    engine: EngineState
    requests: Requests
    tokens: dict[str, int]
    kv_blocks: dict[str, int]
    prefix_cache: dict[str, int]
    preemptions: int
    steps: int
    ttft: Spread
    itl: Spread
    tenants: list[TenantUsage]


class StatsReport:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._began_s = parts.now_s()

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="State and counters of the server, for a dashboard", answer=Stats)
        yield Route("GET", "/stats", self.stats, admin=True, doc=doc)

    def stats(self, exchange: Exchange) -> None:
        exchange.respond(200, msgspec.json.encode(self._report()), headers=NO_STORE)

    def _report(self) -> Stats:
        parts, now_s = self._parts, self._parts.now_s()
        link = parts.link
        return Stats(
            version=parts.version,
            models=parts.served_names,
            started=parts.created,
            now_s=now_s,
            uptime_s=now_s - self._began_s,
            engine=self._engine(),
            requests=Requests(
                running=link.stats.running,
                waiting=link.stats.waiting,
                ended=self._by_label("vllm:request_success"),
                answers=self._by_label("firelane:http_responses"),
            ),
            tokens={
                "prompt": self._count("vllm:prompt_tokens"),
                "generated": self._count("vllm:generation_tokens"),
            },
            kv_blocks={"used": link.stats.kv_used_blocks, "total": link.stats.kv_total_blocks},
            prefix_cache={
                "queries": self._count("vllm:prefix_cache_queries"),
                "hits": self._count("vllm:prefix_cache_hits"),
            },
            preemptions=self._count("vllm:num_preemptions"),
            steps=self._count("firelane:engine_steps"),
            ttft=self._spread("vllm:time_to_first_token_seconds"),
            itl=self._spread("vllm:inter_token_latency_seconds"),
            tenants=self._tenants(),
        )

    def _engine(self) -> EngineState:
        link, draining = self._parts.link, self._parts.draining
        ready, progress = link.ready, link.progress
        loading = None
        if ready is None and progress is not None:
            loading = Loading(
                stage=progress.stage, done=progress.done, total=progress.total, unit=progress.unit
            )
        return EngineState(
            state="draining" if draining else link.state.value,
            reason="shutting down" if draining else describe(link),
            loading=loading,
            max_num_seqs=ready and ready.max_num_seqs,
            max_model_len=ready and ready.max_model_len,
            block_tokens=ready and ready.block_size,
            weights_bytes=ready and ready.weights_bytes,
            kv_bytes=ready and ready.kv_bytes,
            load_s=ready and ready.load_s,
        )

    def _tenants(self) -> list[TenantUsage]:
        """Those of which anything is counted, by name."""
        whole = ("requests", "rejected", "prompt_tokens", "cached_tokens", "generated_tokens")
        counts = {name: self._by_label(f"firelane:tenant_{name}") for name in whole}
        costs = self._counter("firelane:tenant_cost").values
        names = sorted({tenant for values in counts.values() for tenant in values})
        return [
            TenantUsage(
                name=tenant,
                cost=costs.get(tenant, 0.0),
                **{name: values.get(tenant, 0) for name, values in counts.items()},
            )
            for tenant in names
        ]

    def _counter(self, name: str) -> Counter:
        counter = self._parts.accounting.registry.find(name)
        assert isinstance(counter, Counter)
        return counter

    def _by_label(self, name: str) -> dict[str, int]:
        return {label: int(count) for label, count in self._counter(name).values.items()}

    def _count(self, name: str) -> int:
        return sum(self._by_label(name).values())

    def _spread(self, name: str) -> Spread:
        histogram = self._parts.accounting.registry.find(name)
        assert isinstance(histogram, Histogram)
        return Spread(bounds_s=histogram.bounds, counts=histogram.counts, sum_s=histogram.sum)
