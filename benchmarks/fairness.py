"""Time to the first token of one tenant's requests while another floods the engine, against an empty engine.

    python benchmarks/fairness.py [MODEL] [--null] [--flood 300] [--prompts 16 512] [--requests 20]

The flood keeps so many requests in flight, all from the start. The other tenant, the visitor, sends one
request at a time, each a random moment after the answer to the last one. The engines run in this process: no
gateway's time is in the figures. --null takes the null backend, whose steps take 4 ms, or 0.24 ms a token
where that is longer. With --kind same-tenant both are one tenant (first come, first served), and with
background the flood is background work. "flood kept" is what the flood got of the tokens a second (prompts
and outputs) that it gets alone. The visitor's first two requests are left out: when nobody else was here of
late, a tenant has all slots, and steps of full length.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firelane.backends.null import NullExecutor
from firelane.contract import Executor, StepInputs, StepLimits
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, Submit

EMBEDDED = Path(__file__).resolve().parent.parent / "firelane" / "models" / "embedded"
CACHE = Path.home() / ".cache" / "firelane"
NULL_LIMITS = StepLimits(
    max_num_seqs=256,
    max_num_batched_tokens=512,
    max_output_rows=288,
    max_model_len=2048,
    block_size=16,
    num_blocks=1 << 15,
)
VISITOR = 1 << 40
"""Ids of the visitor's requests start here."""
PAUSE_S = (0.0, 0.25)
TURN = 2
"""Visits to one engine before it is the other's turn."""
SETTLE_S = 0.1
FILL_S = 20.0
ALONE_S = 3.0
"""For so long the flood is measured without visitors."""


@dataclass(frozen=True, kw_only=True)
class Flood:
    """Requests in flight, and the tokens of each."""

    requests: int
    prompt: int
    output: int
    kind: str = "tenant"


class Traffic:
    """A channel that plays both tenants. ttft_s: of the visitor's requests, since they were due."""

    def __init__(self, flood: Flood | None, vocab_size: int) -> None:
        self._flood = flood
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(0)
        self._missing = flood.requests if flood else 0
        self._next_id = 0
        self._prompt = 0
        self._due_s = math.inf
        self._sent_s = math.inf
        self.ttft_s: list[float] = []

    def visit(self, prompt: int) -> None:
        """From now on there are visits, with prompts of so many tokens; 0: no more, and no more flood."""
        self._prompt, self._flood = prompt, self._flood if prompt else None
        self._due_s = time.monotonic() + self._random.uniform(*PAUSE_S) if prompt else math.inf

    def pause(self) -> None:
        self._due_s = math.inf

    def receive(self, wait_s: float | None) -> list[Submit]:
        new: list[NewRequest] = []
        while self._flood and self._missing:
            self._missing -= 1
            new.append(self._request(0, self._flood.prompt, self._flood.output))
        if not new and self._due_s < math.inf and wait_s is None:
            time.sleep(max(0.0, self._due_s - time.monotonic()))
        if time.monotonic() >= self._due_s:
            self._sent_s, self._due_s = self._due_s, math.inf
            new.append(self._request(VISITOR, self._prompt, 1))
        return [Submit(new)] if new else []

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        now_s = time.monotonic()
        if self._sent_s < math.inf and any(i >= VISITOR for i in frame.ids):
            self.ttft_s.append(now_s - self._sent_s)
            self._sent_s = math.inf
        for finished in frame.finished:
            if finished.id < VISITOR:
                self._missing += 1
            elif self._prompt:
                self._due_s = now_s + self._random.uniform(*PAUSE_S)

    def _request(self, first_id: int, prompt: int, output: int) -> NewRequest:
        self._next_id += 1
        kind = self._flood.kind if self._flood else ""
        return NewRequest(
            id=first_id + self._next_id,
            prompt=self._random.integers(5, self._vocab_size, prompt, dtype=np.int32).tobytes(),
            sampling=Sampling(temperature=0.0, max_tokens=output),
            tenant="flood" if kind == "tenant" and not first_id else "visitor",
            background=kind == "background" and not first_id,
        )


class Run:
    """One engine, from empty to empty."""

    def __init__(self, executor: Executor, flood: Flood | None) -> None:
        self._traffic = Traffic(flood, executor.vocab_size)
        self._core = EngineCore(executor, self._traffic, prefix_cache=False)

    def until(self, is_done: Callable[[], bool]) -> float:
        """Step until then; returns all tokens computed a second."""
        times = self._core.policy.times
        computed, note = 0, times.note

        def count(tokens: int, seconds: float) -> None:
            nonlocal computed
            computed += tokens
            note(tokens, seconds)

        times.note = count
        began_s = time.monotonic()
        while not is_done():
            self._core.step()
        times.note = note
        return computed / (time.monotonic() - began_s)

    def fill(self, sequences: int, limit_s: float) -> None:
        """Until so many decode."""
        ends_s, table = time.monotonic() + limit_s, self._core.table
        self.until(lambda: int(table.decoding.sum()) >= sequences or time.monotonic() > ends_s)

    def alone(self) -> float:
        ends_s = time.monotonic() + ALONE_S
        return self.until(lambda: time.monotonic() > ends_s)

    def visits(self, prompt: int, requests: int) -> tuple[list[float], float]:
        """TTFT of each visit, and tokens a second that the flood got meanwhile."""
        traffic = self._traffic
        traffic.ttft_s.clear()
        time.sleep(SETTLE_S)  # the other engine's last step
        traffic.visit(prompt)
        began_s = time.monotonic()
        rate = self.until(lambda: len(traffic.ttft_s) >= requests)
        visitors = requests * prompt / (time.monotonic() - began_s)
        traffic.pause()
        return traffic.ttft_s[:requests], rate - visitors

    def end(self) -> None:
        self._traffic.visit(0)
        self._core.abort_all()
        self.until(lambda: self._core.is_idle)


def null_executor() -> NullExecutor:
    def step_s(inputs: StepInputs) -> float:
        return max(0.004, 0.00024 * inputs.num_tokens)

    return NullExecutor(NULL_LIMITS, 32000, step_s)


def cpu_executor(model: Path) -> Executor:
    config = EngineConfig(model_dir=model, cache_dir=CACHE, max_model_len=2048)
    return load_executor(config, lambda *_: None)


def measure(empty: Run, busy: Run, prompts: list[int], requests: int, alone_rate: float) -> list[str]:
    """One row for each length of prompt; the two engines take turns, as a shared machine's speed drifts."""
    rows: list[str] = []
    for prompt in prompts:
        lone, crowded, rates = [], [], []
        for _ in range(-(-requests // TURN)):
            lone += empty.visits(prompt, TURN)[0]
            times, rate = busy.visits(prompt, TURN)
            crowded += times
            rates.append(rate)
        ratio = statistics.median(crowded) / statistics.median(lone)
        cells = [f"{1e3 * f(times):.1f}" for times in (lone, crowded) for f in (statistics.median, max)]
        kept = statistics.median(rates) / alone_rate
        rows.append(f"| {prompt} | {' | '.join(cells)} | {ratio:.2f} | {kept:.0%} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, default=EMBEDDED)
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--kind", choices=("tenant", "same-tenant", "background"), default="tenant")
    parser.add_argument("--flood", type=int, default=300, help="requests in flight")
    parser.add_argument("--flood-tokens", type=int, nargs=2, default=(220, 200), metavar=("PROMPT", "OUTPUT"))
    parser.add_argument("--prompts", type=int, nargs="+", default=[16, 128, 512])
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    executors = [null_executor() if options.null else cpu_executor(options.model) for _ in range(2)]
    prompt, output = options.flood_tokens
    flood = Flood(requests=options.flood, prompt=prompt, output=output, kind=options.kind)
    name = "null backend" if options.null else options.model.name
    print(f"{name}, {platform.machine()}, {os.cpu_count()} cores; {options.requests} visits a row; ", end="")
    print(f"flood of {flood.requests} requests ({flood.kind}), {prompt} tokens in, {output} out\n")
    print("| prompt tokens | empty: median ms | max | flooded: median ms | max | ratio | flood kept |")
    print("|---|---|---|---|---|---|---|")
    empty, busy = Run(executors[0], None), Run(executors[1], flood)
    busy.fill(min(flood.requests, executors[1].limits.max_num_seqs) * 9 // 10, FILL_S)
    rate = busy.alone()
    busy.visits(min(options.prompts), TURN)  # the first ones meet long steps: nobody else was here before
    for row in measure(empty, busy, options.prompts, options.requests, rate):
        print(row, flush=True)
    for run, executor in zip((empty, busy), executors, strict=True):
        run.end()
        executor.release()


if __name__ == "__main__":
    main()
