"""Drive an OpenAI-compatible server with a load and say how it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from firelane.bench.client import LoadClient, Outcome, Recording, read_outcome
from firelane.bench.table import format_table, percentile
from firelane.bench.workload import Request
from firelane.errors import MachineError

PERCENTS = (50, 90, 99)


@dataclass(frozen=True, kw_only=True)
class Load:
    """When requests are sent: `arrivals_s[i]` after the start (None: as soon as there is room), never
    more than `concurrency` at a time (None: no bound)."""

    concurrency: int | None = None
    arrivals_s: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """A request is good when its time to first token and its time per output token stay within these."""

    ttft_ms: float
    tpot_ms: float

    def met_by(self, outcome: Outcome) -> bool:
        return outcome.ttft_s * 1e3 <= self.ttft_ms and outcome.tpot_s * 1e3 <= self.tpot_ms


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of one run. Rates are per second of wall time; latencies map a percentile to milliseconds."""

    seconds: float
    completed: int
    failed: int
    first_error: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    ttft_ms: dict[int, float]
    itl_ms: dict[int, float]
    tpot_ms: dict[int, float]
    total_ms: dict[int, float]


def run_load(client: LoadClient, requests: Sequence[Request], load: Load) -> tuple[list[Outcome], float]:
    """Send all requests; returns their outcomes in order, and the wall time in seconds."""
    import uvloop

    recordings, seconds = uvloop.run(_send_all(client, requests, load))
    return [read_outcome(r) for r in recordings], seconds


async def _send_all(
    client: LoadClient, requests: Sequence[Request], load: Load
) -> tuple[list[Recording], float]:
    room = asyncio.Semaphore(load.concurrency or len(requests))
    start = time.perf_counter()

    async def send(index: int) -> Recording:
        if load.arrivals_s is not None:
            await asyncio.sleep(max(0.0, load.arrivals_s[index] - (time.perf_counter() - start)))
        async with room:
            return await client.complete(requests[index])

    recordings = await asyncio.gather(*(send(i) for i in range(len(requests))))
    return recordings, time.perf_counter() - start


def summarise(outcomes: Sequence[Outcome], seconds: float, objectives: Objectives) -> Summary:
    """Raises MachineError when no request succeeded."""
    good = [o for o in outcomes if not o.error]
    errors = [o.error for o in outcomes if o.error]
    if not good:
        raise MachineError(
            f"all {len(outcomes)} requests failed: {errors[0] if errors else 'none were sent'}"
        )
    prompt, output = sum(o.prompt_tokens for o in good), sum(o.output_tokens for o in good)
    return Summary(
        seconds=seconds,
        completed=len(good),
        failed=len(errors),
        first_error=errors[0] if errors else "",
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=sum(o.cached_tokens for o in good),
        output_tokens_per_s=output / seconds,
        total_tokens_per_s=(prompt + output) / seconds,
        requests_per_s=len(good) / seconds,
        goodput_per_s=sum(objectives.met_by(o) for o in good) / seconds,
        ttft_ms=_percentiles_ms([o.ttft_s for o in good]),
        itl_ms=_percentiles_ms([gap for o in good for gap in o.gaps_s]),
        tpot_ms=_percentiles_ms([o.tpot_s for o in good]),
        total_ms=_percentiles_ms([o.total_s for o in good]),
    )


def _percentiles_ms(seconds: Sequence[float]) -> dict[int, float]:
    return {p: percentile(seconds, p) * 1e3 for p in PERCENTS}


def format_summary(summary: Summary, objectives: Objectives) -> str:
    s = summary
    failed = f"; {s.failed} failed, first: {s.first_error}" if s.failed else ""
    latencies = {"TTFT": s.ttft_ms, "ITL": s.itl_ms, "TPOT": s.tpot_ms, "request": s.total_ms}
    rows = [[name, *(f"{v[p]:.2f}" for p in PERCENTS)] for name, v in latencies.items()]
    return "\n".join(
        [
            f"{s.completed} requests in {s.seconds:.2f} s{failed}",
            f"tokens: {s.prompt_tokens} in ({s.cached_tokens} cached), {s.output_tokens} out",
            f"throughput: {s.output_tokens_per_s:.1f} output tok/s, {s.total_tokens_per_s:.1f} total tok/s, "
            f"{s.requests_per_s:.2f} requests/s",
            f"goodput: {s.goodput_per_s:.2f} requests/s with TTFT <= {objectives.ttft_ms:g} ms "
            f"and TPOT <= {objectives.tpot_ms:g} ms",
            format_table(["ms", *(f"p{p}" for p in PERCENTS)], rows),
        ]
    )
