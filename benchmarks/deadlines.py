"""Requests with deadlines among others, by recorded traffic: the engine's own scheduler in simulated time.

    python benchmarks/deadlines.py TRACE [TRACE ...] [--share 0.5] [--load 0.8 1.0 1.2] [--minutes 15]

TRACE is a file of the Azure Public Dataset of 2023 (AzureLLMInferenceTrace_conv.csv or _code.csv), as it is
or packed by xz: a request a line with its time, prompt tokens and output tokens. Its times are sped up or
slowed down evenly: at a load of 1 the requests come within the time that the engine takes for them where all
come at once. A share of them, drawn by lot, have a deadline: 2 to 8 times what their answer takes on an idle
engine, and half a second. All are of one tenant.

The engine is the real one, with its loop, scheduler and policies, and no model: a step takes 8 ms, 1/16 ms
for each token of a prompt, and 50 us for each sequence that decodes; at most 128 run, and a step has at most
2,048 tokens. fcfs: first come, first served, which knows no deadlines. deadlines: `--scheduling-policy fair`.

Goodput: answers a second that were complete by their deadline. TTFT: of requests without one.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from firelane.backends.null import NullExecutor
from firelane.bench.table import format_table
from firelane.contract import StepInputs, StepLimits
from firelane.engine.core import EngineCore
from firelane.engine.policies.fair import FairPolicy
from firelane.engine.policies.fcfs import FcfsPolicy
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, Submit

STEP_S, TOKEN_S, SEQUENCE_S = 8e-3, 1 / 16_000, 50e-6
LIMITS = StepLimits(
    max_num_seqs=128,
    max_num_batched_tokens=2048,
    max_output_rows=256,
    max_model_len=16_384,
    block_size=16,
    num_blocks=25_000,
)
VOCABULARY = 1 << 15
SLACK, LEAST_SLACK_S = (2.0, 8.0), 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRequest:
    """arrival_s: from the start of the trace. deadline_s: from its arrival; 0: none. declared: output tokens
    that it says that it wants at most."""

    arrival_s: float
    prompt: int
    output: int
    declared: int = 0
    deadline_s: float = 0.0


def idle_s(request: TracedRequest) -> float:
    """Seconds that its answer takes on an idle engine."""
    steps = -(-request.prompt // LIMITS.max_num_batched_tokens) + request.output - 1
    return steps * (STEP_S + SEQUENCE_S) + request.prompt * TOKEN_S


def read_trace(path: Path, seconds: float) -> list[TracedRequest]:
    """The requests of the first `seconds` that fit the engine."""
    found: list[TracedRequest] = []
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as lines:
        for row in csv.DictReader(lines):
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            if prompt < 1 or output < 1 or prompt + output > LIMITS.max_model_len:
                continue
            first_s = found[0].arrival_s if found else at_s
            if at_s - first_s > seconds:
                break
            found.append(TracedRequest(arrival_s=at_s, prompt=prompt, output=output))
    start_s = found[0].arrival_s
    return [_at(one, one.arrival_s - start_s) for one in found]


def _at(request: TracedRequest, arrival_s: float) -> TracedRequest:
    return TracedRequest(arrival_s=arrival_s, prompt=request.prompt, output=request.output)


def busy_seconds(trace: Sequence[TracedRequest]) -> float:
    """Seconds that the engine takes for all requests where they come at once."""
    return simulate([_at(one, 0.0) for one in trace], "fcfs").seconds


def with_load(trace: Sequence[TracedRequest], load: float, busy_s: float) -> list[TracedRequest]:
    """The trace at another speed, so that busy_s is this part of the time within which its requests come."""
    factor = busy_s / load / trace[-1].arrival_s
    return [_at(one, one.arrival_s * factor) for one in trace]


def with_deadlines(
    trace: Sequence[TracedRequest], share: float, declared: float, seed: int
) -> list[TracedRequest]:
    """declared: the output that a request declares, over what it has."""
    rng = np.random.default_rng(seed)
    found: list[TracedRequest] = []
    for one in trace:
        has_one, slack = rng.random() < share, rng.uniform(*SLACK)
        deadline_s = slack * idle_s(one) + LEAST_SLACK_S if has_one else 0.0
        found.append(
            TracedRequest(
                arrival_s=one.arrival_s,
                prompt=one.prompt,
                output=one.output,
                declared=max(1, round(declared * one.output)),
                deadline_s=deadline_s,
            )
        )
    return found


@dataclass(kw_only=True)
class Outcomes:
    """By request: seconds from its arrival to its first token and to its end."""

    first_s: dict[int, float] = field(default_factory=dict[int, float])
    end_s: dict[int, float] = field(default_factory=dict[int, float])
    refused_s: dict[int, float] = field(default_factory=dict[int, float])
    seconds: float = 0.0


class TraceChannel:
    """Plays a trace to the engine by a simulated clock, which waits for nobody."""

    def __init__(self, trace: Sequence[TracedRequest]) -> None:
        self.now_s = 0.0
        self.outcomes = Outcomes()
        self._trace, self._next = trace, 0
        self._prompt = np.random.default_rng(0).integers(5, VOCABULARY, 2 * LIMITS.max_model_len, np.int32)

    @property
    def has_more(self) -> bool:
        return self._next < len(self._trace)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def receive(self, wait_s: float | None) -> list[Submit]:
        if wait_s is None and self.has_more:
            self.now_s = max(self.now_s, self._trace[self._next].arrival_s)
        new: list[NewRequest] = []
        while self.has_more and self._trace[self._next].arrival_s <= self.now_s:
            new.append(self._request(self._next, self._trace[self._next]))
            self._next += 1
        return [Submit(new)] if new else []

    def send(self, frame: StepFrame | Rejected | PageChanges) -> None:
        outcomes = self.outcomes
        if isinstance(frame, Rejected):
            assert frame.code == "deadline_unreachable", frame.message
            outcomes.refused_s[frame.id] = self._since(frame.id)
        elif isinstance(frame, StepFrame):
            for one in frame.ids:
                outcomes.first_s.setdefault(one, self._since(one))
            for finished in frame.finished:
                outcomes.end_s[finished.id] = self._since(finished.id)
            outcomes.seconds = self.now_s

    def _since(self, number: int) -> float:
        return self.now_s - self._trace[number].arrival_s

    def _request(self, number: int, one: TracedRequest) -> NewRequest:
        """The time that has passed before the engine looked for it is gone."""
        left_s = one.arrival_s + one.deadline_s - self.now_s
        return NewRequest(
            id=number,
            prompt=self._prompt[number % LIMITS.max_model_len :][: one.prompt].tobytes(),
            sampling=Sampling(temperature=0.0, max_tokens=one.output),
            deadline_ms=max(1, round(1000 * left_s)) if one.deadline_s else 0,
            due_tokens=one.declared,
        )


def step_s(inputs: StepInputs) -> float:
    """Seconds that a step takes. Nothing is scored or drafted, so each output row is one of a sequence."""
    prompts = max(0, inputs.num_tokens - inputs.num_rows)
    return STEP_S + prompts * TOKEN_S + inputs.num_rows * SEQUENCE_S


def simulate(trace: Sequence[TracedRequest], policy: str) -> Outcomes:
    channel = TraceChannel(trace)
    executor = NullExecutor(LIMITS, VOCABULARY, step_s, clock=channel.clock, sleep=channel.sleep)
    most = LIMITS.max_num_batched_tokens
    core = EngineCore(
        executor,
        channel,
        prefix_cache=False,
        policy=FcfsPolicy() if policy == "fcfs" else FairPolicy(most, channel.clock),
        clock=channel.clock,
    )
    while channel.has_more or not core.is_idle:
        core.step()
    executor.release()
    return channel.outcomes


@dataclass(frozen=True, kw_only=True)
class Figures:
    goodput: float
    kept: float
    late: float
    refused: float
    refused_after_ms: float
    p50_s: float
    p99_s: float


def figures_of(trace: Sequence[TracedRequest], outcomes: Outcomes) -> Figures:
    due = [i for i, one in enumerate(trace) if one.deadline_s]
    good = sum(outcomes.end_s.get(i, np.inf) <= trace[i].deadline_s for i in due)
    late = sum(outcomes.end_s.get(i, 0.0) > trace[i].deadline_s for i in due)
    others = [outcomes.first_s[i] for i, one in enumerate(trace) if not one.deadline_s]
    refused = list(outcomes.refused_s.values())
    return Figures(
        goodput=good / outcomes.seconds,
        kept=good / len(due),
        late=late / len(due),
        refused=len(refused) / len(due),
        refused_after_ms=1000 * float(np.median(refused)) if refused else 0.0,
        p50_s=float(np.percentile(others, 50)) if others else 0.0,
        p99_s=float(np.percentile(others, 99)) if others else 0.0,
    )


HEADER = [
    *("trace", "load", "policy", "goodput/s", "over fcfs", "in time", "late", "refused", "after ms"),
    *("TTFT p50 s", "p99 s", "over fcfs"),
]


def rows_of(name: str, load: float, trace: Sequence[TracedRequest]) -> Iterable[list[str]]:
    found = {policy: figures_of(trace, simulate(trace, policy)) for policy in ("fcfs", "deadlines")}
    base = found["fcfs"]
    for policy, one in found.items():
        yield [
            *(
                name,
                f"{load:g}",
                policy,
                f"{one.goodput:.2f}",
                f"{one.goodput / max(base.goodput, 1e-9):.2f}",
            ),
            *(f"{100 * share:.1f}%" for share in (one.kept, one.late, one.refused)),
            *(f"{one.refused_after_ms:.0f}", f"{one.p50_s:.2f}", f"{one.p99_s:.2f}"),
            f"{one.p99_s / max(base.p99_s, 1e-9):.2f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--share", type=float, default=0.5, help="of requests with a deadline")
    parser.add_argument("--load", type=float, nargs="+", default=[0.8, 1.0, 1.2])
    parser.add_argument("--minutes", type=float, default=15.0, help="of each trace, from its start")
    parser.add_argument("--declared", type=float, default=1.0, help="max_tokens over the output's length")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began_s, rows = time.monotonic(), list[list[str]]()
    for path in arguments.traces:
        trace = read_trace(path, 60 * arguments.minutes)
        busy_s = busy_seconds(trace)
        print(f"{path.name}: {len(trace)} requests, {busy_s:.0f} s of work", flush=True)
        for load in arguments.load:
            faster = with_load(trace, load, busy_s)
            timed = with_deadlines(faster, arguments.share, arguments.declared, arguments.seed)
            rows += rows_of(path.name.partition(".")[0], load, timed)
            print(f"{path.name} at {load:g}: {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(format_table(HEADER, rows))


if __name__ == "__main__":
    main()
