"""Layers of several spans on the CPU under the whole engine: with pages released, evicted and found again,
each sequence has the bytes that it has alone in an engine that keeps every page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from firelane.backends.cpu.executor import CpuExecutor
from firelane.contract import CAUSAL, Chunk, StepLimits, Window
from firelane.engine.core import EngineCore
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, Submit
from tests.backends.cpu_harness import limits, machine, small_spec, with_spans
from tests.models.dense import dense_program

BASE = dense_program(small_spec(windows=(0,) * 3))
MODELS = {
    "windows": with_spans(BASE, (Window(50),) * 3),
    "causal and window": with_spans(BASE, (Window(70), CAUSAL, Window(70))),
    "causal, window, chunk": with_spans(BASE, (CAUSAL, Window(37), Chunk(100))),
}
LONGEST, BLOCK_SIZE, CHUNK = 320, 16, 96


class Keeping:
    """The executor, with limits that say that all layers are causal: its engine keeps every page."""

    def __init__(self, executor: CpuExecutor) -> None:
        self.limits = replace(executor.limits, spans=(CAUSAL,) * len(executor.limits.spans))
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


@dataclass
class Recorder:
    """A channel that submits requests at given turns and keeps what was drawn at each position."""

    arrivals: dict[int, list[NewRequest]]
    turn: int = 0
    drawn: dict[int, list[tuple]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    stats: Any = None
    most_pages: int = 0

    def __post_init__(self) -> None:
        self.open = {r.id for requests in self.arrivals.values() for r in requests}

    def receive(self, wait_s: float | None) -> list[Submit]:  # noqa: ARG002
        self.turn += 1
        return [Submit(self.arrivals.pop(self.turn - 1, []))]

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        for entry in frame.logprobs:
            record = (entry.position, entry.token, entry.logprob, entry.top_ids, entry.top_logprobs)
            self.drawn.setdefault(entry.id, []).append(record)
        self.open -= {finished.id for finished in frame.finished}
        self.stats = frame.stats


def run(executor: Any, arrivals: dict[int, list[NewRequest]], *, prefix_cache: bool = True) -> Recorder:
    channel = Recorder(dict(arrivals))
    core = EngineCore(executor, channel, prefix_cache=prefix_cache)
    while channel.open or not core.is_idle:
        core.step()
        core.check_integrity()
        channel.most_pages = max(channel.most_pages, core.kv.num_used_pages)
    assert core.kv.num_used_pages == 0
    return channel


def requests() -> list[NewRequest]:
    """Prompts from one token to past every span; some are others' prefixes."""
    rng = np.random.default_rng(5)
    long = rng.integers(0, 331, 290).astype(np.int32)
    lengths = (1, 30, 64, 97, 150, 210, 260, 290, 150, 260)
    return [
        NewRequest(
            id=i,
            prompt=(long if i % 3 else rng.integers(0, 331, 290).astype(np.int32))[:length].tobytes(),
            sampling=Sampling(seed=i, max_tokens=30, logprobs=3, temperature=float(i % 2)),
        )
        for i, length in enumerate(lengths)
    ]


def sizes(num_blocks: int) -> StepLimits:
    return limits(
        max_num_seqs=6,
        max_num_batched_tokens=CHUNK,
        max_model_len=LONGEST,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
    )


@pytest.fixture(scope="module", params=MODELS)
def executors(request: pytest.FixtureRequest, kernel_cache) -> Iterator[tuple[CpuExecutor, CpuExecutor]]:
    """With memory for all, and with memory for about two sequences."""
    program = MODELS[request.param]
    made = [machine(program, kernel_cache, sizes=sizes(blocks)).executor for blocks in (140, 26)]
    for executor in made:
        executor.pages[:] = 0xFF
    yield made[0], made[1]
    for executor in made:
        executor.release()


def test_the_same_bytes_with_pages_released(executors: tuple[CpuExecutor, CpuExecutor]) -> None:
    ample, scarce = executors
    asked = requests()
    alone: dict[int, list[tuple]] = {}
    for request in asked:
        alone |= run(Keeping(ample), {0: [request]}, prefix_cache=False).drawn
    arrivals = {3 * i: [request] for i, request in enumerate(asked)}
    together = run(ample, arrivals)
    assert together.drawn == alone
    squeezed = run(scarce, arrivals)
    assert squeezed.drawn == alone
    assert squeezed.stats.prefix_hits > 0


def test_a_long_sequence_holds_its_spans_alone(executors: tuple[CpuExecutor, CpuExecutor]) -> None:
    ample, _ = executors
    longest = max(requests(), key=lambda r: len(r.prompt))
    released, kept = (
        run(executor, {0: [longest]}, prefix_cache=False) for executor in (ample, Keeping(ample))
    )
    assert released.drawn == kept.drawn
    assert released.most_pages < kept.most_pages
    assert released.most_pages <= ample.limits.pages_needed(LONGEST) + len(ample.limits.spans) * (
        CHUNK // BLOCK_SIZE
    )
