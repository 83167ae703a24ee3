"""The figures of a load: rates, latencies, goodput, under the names of `vllm bench serve`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from firelane.bench.client import Outcome
from firelane.bench.table import format_table
from firelane.errors import MachineError, UsageError

PERCENTS = (50, 90, 99)


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """A request is good when it stays within these; None: of no matter. e2el: of the whole request."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    @classmethod
    def read(cls, pairs: Sequence[str]) -> Objectives:
        """Objectives from words such as "ttft:500". Raises UsageError."""
        found: dict[str, float] = {}
        for pair in pairs:
            name, _, value = pair.partition(":")
            try:
                number = float(value)
            except ValueError:
                number = math.nan
            if name not in ("ttft", "tpot", "e2el") or not number >= 0:
                raise UsageError(f"--goodput {pair}: give ttft:MS, tpot:MS or e2el:MS")
            found[f"{name}_ms"] = number
        return cls(**found)

    def __str__(self) -> str:
        named = {"TTFT": self.ttft_ms, "TPOT": self.tpot_ms, "E2EL": self.e2el_ms}
        return " and ".join(f"{name} <= {most:g} ms" for name, most in named.items() if most is not None)

    def __bool__(self) -> bool:
        return bool(str(self))

    def met_by(self, outcome: Outcome) -> bool:
        took = (
            (outcome.ttft_s, self.ttft_ms),
            (outcome.tpot_s, self.tpot_ms),
            (outcome.e2el_s, self.e2el_ms),
        )
        return all(most is None or seconds * 1e3 <= most for seconds, most in took)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of many values; nan of none. percentiles: by percent, interpolated between neighbours."""

    mean: float
    std: float
    percentiles: dict[float, float]

    @classmethod
    def of(cls, values: Sequence[float], percents: Sequence[float] = PERCENTS) -> Statistics:
        array = np.array(values or [math.nan])
        wanted = sorted({50, *percents})
        found = np.percentile(array, wanted).tolist()
        return cls(
            mean=float(array.mean()),
            std=float(array.std()),
            percentiles=dict(zip(wanted, found, strict=True)),
        )

    def __getitem__(self, percent: float) -> float:
        return self.percentiles[percent]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Summary of one run. Rates are per second of wall time. goodput_per_s: None where nothing was asked for.
    most_tokens_per_s: in the best second; most_running: requests at a time."""

    seconds: float
    completed: int
    failed: int
    first_error: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    goodput_per_s: float | None
    most_tokens_per_s: int
    most_running: int
    ttft_ms: Statistics
    tpot_ms: Statistics
    itl_ms: Statistics
    e2el_ms: Statistics
    outcomes: Sequence[Outcome] = field(repr=False)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def total_tokens_per_s(self) -> float:
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def requests_per_s(self) -> float:
        return self.completed / self.seconds


def summarise(
    outcomes: Sequence[Outcome],
    seconds: float,
    objectives: Objectives,
    percents: Sequence[float] = PERCENTS,
) -> Summary:
    """Raises MachineError when no request succeeded."""
    good = [o for o in outcomes if not o.error]
    errors = [o.error for o in outcomes if o.error]
    if not good:
        raise MachineError(
            f"all {len(outcomes)} requests failed: {errors[0] if errors else 'none were sent'}"
        )

    def of(values: list[float]) -> Statistics:
        return Statistics.of([value * 1e3 for value in values], percents)

    return Summary(
        seconds=seconds,
        completed=len(good),
        failed=len(errors),
        first_error=errors[0] if errors else "",
        prompt_tokens=sum(o.prompt_tokens for o in good),
        output_tokens=sum(o.output_tokens for o in good),
        cached_tokens=sum(o.cached_tokens for o in good),
        goodput_per_s=sum(objectives.met_by(o) for o in good) / seconds if objectives else None,
        most_tokens_per_s=max(tokens_by_second(good)),
        most_running=_most_running(good),
        ttft_ms=of([o.ttft_s for o in good]),
        tpot_ms=of([o.tpot_s for o in good if o.output_tokens > 1]),
        itl_ms=of([gap for o in good for gap in o.gaps_s]),
        e2el_ms=of([o.e2el_s for o in good]),
        outcomes=outcomes,
    )


def tokens_by_second(good: Sequence[Outcome]) -> list[int]:
    """Events with text in each second from the first request's start; at least one second."""
    first_s = min(o.start_s for o in good)
    seconds = [int(o.start_s - first_s + at) for o in good for at in o.token_times_s]
    return np.bincount(seconds).tolist()


def running_over_time(good: Sequence[Outcome]) -> tuple[list[float], list[int]]:
    """Requests under way, and the seconds from the first one's start at which their number changes."""
    first_s = min(o.start_s for o in good)
    steps = sorted(
        [(o.start_s - first_s, 1) for o in good] + [(o.start_s - first_s + o.e2el_s, -1) for o in good]
    )
    return [at for at, _ in steps], np.cumsum([step for _, step in steps]).tolist()


def _most_running(good: Sequence[Outcome]) -> int:
    return max(running_over_time(good)[1])


def format_summary(summary: Summary, objectives: Objectives) -> str:
    s = summary
    failed = f"; {s.failed} failed, first: {s.first_error}" if s.failed else ""
    latencies = {"TTFT": s.ttft_ms, "TPOT": s.tpot_ms, "ITL": s.itl_ms, "E2EL": s.e2el_ms}
    percents = list(s.ttft_ms.percentiles)
    rows = [
        [name, f"{v.mean:.2f}", f"{v.std:.2f}", *(f"{v[p]:.2f}" for p in percents)]
        for name, v in latencies.items()
    ]
    lines = [
        f"{s.completed} requests in {s.seconds:.2f} s{failed}",
        f"tokens: {s.prompt_tokens} in ({s.cached_tokens} cached), {s.output_tokens} out",
        f"throughput: {s.output_tokens_per_s:.1f} output tok/s, {s.total_tokens_per_s:.1f} total tok/s, "
        f"{s.requests_per_s:.2f} requests/s",
        f"at most: {s.most_tokens_per_s} output tok in one second, {s.most_running} requests at a time",
    ]
    if s.goodput_per_s is not None:
        lines.append(f"goodput: {s.goodput_per_s:.2f} requests/s with {objectives}")
    return "\n".join([*lines, format_table(["ms", "mean", "std", *(f"p{p:g}" for p in percents)], rows)])


def result_json(summary: Summary, *, detailed: bool = False) -> dict[str, Any]:
    """Under the keys of vLLM's result files. detailed: with lists of an entry a request, in seconds."""
    s = summary
    latencies = {"ttft": s.ttft_ms, "tpot": s.tpot_ms, "itl": s.itl_ms, "e2el": s.e2el_ms}
    figures: dict[str, Any] = {
        "duration": s.seconds,
        "completed": s.completed,
        "failed": s.failed,
        "total_input_tokens": s.prompt_tokens,
        "total_output_tokens": s.output_tokens,
        "total_cached_tokens": s.cached_tokens,
        "request_throughput": s.requests_per_s,
        "request_goodput": s.goodput_per_s,
        "output_throughput": s.output_tokens_per_s,
        "total_token_throughput": s.total_tokens_per_s,
        "max_output_tokens_per_s": float(s.most_tokens_per_s),
        "max_concurrent_requests": s.most_running,
    }
    for name, values in latencies.items():
        figures |= {f"mean_{name}_ms": values.mean, f"median_{name}_ms": values[50]}
        figures |= {f"std_{name}_ms": values.std}
        figures |= {f"p{percent:g}_{name}_ms": value for percent, value in values.percentiles.items()}
    return figures | (_details(s.outcomes) if detailed else {})


def _details(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    return {
        "input_lens": [o.prompt_tokens for o in outcomes],
        "output_lens": [o.output_tokens for o in outcomes],
        "ttfts": [o.ttft_s if not o.error else 0.0 for o in outcomes],
        "itls": [o.gaps_s for o in outcomes],
        "latencies": [o.e2el_s if not o.error else 0.0 for o in outcomes],
        "start_times": [o.start_s for o in outcomes],
        "errors": [o.error for o in outcomes],
    }
