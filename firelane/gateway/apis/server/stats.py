"""GET /stats: the state of the server in one JSON object, for the dashboard and for scripts.

Counters and histograms are those of /metrics, as they stand: a reader takes the difference of two answers to
see what lies between them. Making one costs the server no more than a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from firelane.api.models import ModelQuery
from firelane.api.node import NodeReport
from firelane.api.stored.paging import read_query
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services
from firelane.telemetry.metrics import Counter, Histogram

NO_STORE = b"cache-control: no-store\r\n"


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of an engine that does not serve yet; done and total are in `unit`s."""

    stage: str
    done: float
    total: float
    unit: str


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """state: a ModelState. reason: why it does not serve. What follows is None until
    the engine has once been ready.
    """

    state: str
    reason: str
    loading: LoadProgress | None
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


class HistogramSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram since the start. counts: observations up to each of bounds_s and above the one before it;
    the last one counts those above all bounds.
    """

    bounds_s: list[float]
    counts: list[int]
    sum_s: float


class TenantUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one tenant with the model since the start; rejected: with any model. cached_tokens are among
    prompt_tokens. cost: in the currency of the price file.
    """

    name: str
    requests: int
    rejected: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    cost: float


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """State of one model, and of the server. models: the reported names of all. node: which are in memory.
    now_s: the clock of this answer, to take differences by. started: Unix time; a new one means that all
    counters began again.
    """

    version: str
    model: str
    models: tuple[str, ...]
    started: int
    now_s: float
    uptime_s: float
    engine: EngineStatus
    requests: Requests
    tokens: dict[str, int]
    kv_blocks: dict[str, int]
    prefix_cache: dict[str, int]
    drafts: dict[str, int]
    preemptions: int
    steps: int
    ttft: HistogramSnapshot
    itl: HistogramSnapshot
    tenants: list[TenantUsage]
    node: NodeReport


class StatsReport:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._began_s = services.now_s()

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="State and counters of a model and the server", answer=Stats, query=ModelQuery)
        yield Route("GET", "/stats", self.stats, admin=True, doc=doc)

    async def stats(self, exchange: Exchange) -> None:
        await self._services.refresh()
        name = read_query(exchange.request.query, ("model",)).get("model")
        model = self._services.models.find(name, exchange.request.tenant)
        exchange.respond(200, msgspec.json.encode(self._report(model)), headers=NO_STORE)

    def _report(self, model: ServedModel) -> Stats:
        services, now_s = self._services, self._services.now_s()
        stats, metrics = model.engines.figures.stats, model.metrics
        return Stats(
            version=services.version,
            model=model.name,
            models=tuple(one.name for one in services.models),
            started=services.created,
            now_s=now_s,
            uptime_s=now_s - self._began_s,
            engine=_engine(model),
            requests=Requests(
                running=stats.running,
                waiting=stats.waiting,
                ended=_whole(metrics.ends),
                answers=_whole(services.metrics.responses),
            ),
            tokens={"prompt": metrics.prompt_tokens.total, "generated": metrics.generated.total},
            kv_blocks={"used": stats.kv_used_blocks, "total": stats.kv_total_blocks},
            prefix_cache={"queries": stats.prefix_queries, "hits": stats.prefix_hits},
            drafts={"tokens": stats.spec_draft_tokens, "accepted": stats.spec_accepted_tokens},
            preemptions=stats.preemptions,
            steps=stats.steps,
            ttft=_snapshot(metrics.ttft),
            itl=_snapshot(metrics.itl),
            tenants=self._tenants(model),
            node=services.control.report(),
        )

    def _tenants(self, model: ServedModel) -> list[TenantUsage]:
        """Usage of each tenant that anything was counted of, by name."""
        usage = self._services.usage
        counters = usage.model(model.name)
        counts = {
            "requests": _whole(counters.requests),
            "rejected": _whole(usage.rejected),
            "prompt_tokens": _whole(counters.prompt_tokens),
            "cached_tokens": _whole(counters.cached_tokens),
            "generated_tokens": _whole(counters.generated_tokens),
        }
        names = sorted({tenant for values in counts.values() for tenant in values})
        return [
            TenantUsage(
                name=tenant,
                cost=counters.cost.sums.get(tenant, 0.0),
                **{name: values.get(tenant, 0) for name, values in counts.items()},
            )
            for tenant in names
        ]


def _engine(model: ServedModel) -> EngineStatus:
    ready, progress = model.engines.ready, model.engines.figures.progress
    loading = None
    if ready is None and progress is not None:
        loading = LoadProgress(
            stage=progress.stage, done=progress.done, total=progress.total, unit=progress.unit
        )
    return EngineStatus(
        state=model.state.value,
        reason=model.reason,
        loading=loading,
        max_num_seqs=ready and ready.max_num_seqs,
        max_model_len=ready and ready.max_model_len,
        block_tokens=ready and ready.block_size,
        weights_bytes=ready and ready.weights_bytes,
        kv_bytes=ready and ready.kv_bytes,
        load_s=ready and ready.load_s,
    )


def _whole(counter: Counter) -> dict[str, int]:
    return {label: int(count) for label, count in counter.sums.items()}


def _snapshot(histogram: Histogram) -> HistogramSnapshot:
    return HistogramSnapshot(bounds_s=histogram.bounds, counts=histogram.all_counts, sum_s=histogram.all_sum)
