"""Offline workloads: what they cost, what is counted, which are chosen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from firelane.bench import offline
from firelane.bench.offline import (
    WORKLOADS,
    OfflineFigures,
    Result,
    Workload,
    choose,
    format_figures,
    measure,
)
from firelane.doctor.limits import Limits
from firelane.errors import UsageError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.sources.resolve import EMBEDDED

LIMITS = Limits(
    threads=2,
    read_gbps=40.0,
    read_gbps_1=30.0,
    dot_gflops=1000.0,
    dot_gflops_1=500.0,
    fma_gflops=500.0,
    fma_gflops_1=250.0,
)


@pytest.fixture(scope="module")
def program() -> Program:
    return load_program(read_config(EMBEDDED))


def workload(sequences: int, prompt: int, output: int, counted: str = "all") -> Workload:
    return Workload(
        name="x", sequences=sequences, prompt_tokens=prompt, output_tokens=output, counted=counted
    )


@pytest.mark.parametrize(
    ("counted", "tokens"), [("prompt", 300), ("output", 60), ("all", 360), ("later", 57)]
)
def test_counted_tokens(counted: str, tokens: int) -> None:
    assert workload(3, 100, 20, counted).tokens == tokens


def test_each_decode_step_reads_all_weights_once(program: Program) -> None:
    one = workload(1, 16, 1).cost(program)
    ten = workload(1, 16, 11).cost(program)
    step = (ten.weight_bytes - one.weight_bytes) / 10
    assert step == pytest.approx(workload(8, 16, 2).cost(program).weight_bytes - one.weight_bytes, rel=0.01)
    assert 0.9 * program.weights_bytes < step < 1.1 * program.weights_bytes


def test_later_leaves_the_prompt_out(program: Program) -> None:
    whole, prompt = workload(1, 600, 9).cost(program), workload(1, 600, 1).cost(program)
    later = workload(1, 600, 9, "later").cost(program)
    assert later.flops == pytest.approx(whole.flops - prompt.flops)
    assert later.kv_bytes == pytest.approx(whole.kv_bytes - prompt.kv_bytes)


@pytest.mark.parametrize("prompt", [2048, 2049, 6000])
def test_chunks_attend_to_what_a_whole_prompt_does(prompt: int) -> None:
    steps = offline._prefill_steps(1, prompt)
    assert sum(s.tokens for s in steps) == prompt
    assert sum(s.attended for s in steps) == prompt * (prompt + 1) // 2
    assert [s.outputs for s in steps] == [0] * (len(steps) - 1) + [1]
    assert steps[-1].context == prompt


def test_short_prompts_share_steps() -> None:
    steps = offline._prefill_steps(32, 128)
    assert [(s.tokens, s.sequences) for s in steps] == [(2048, 16), (2048, 16)]


def test_prompts_are_seeded_and_valid() -> None:
    prompts = workload(3, 50, 1).prompts(600)
    assert prompts == workload(3, 50, 1).prompts(600)
    assert [len(p) for p in prompts] == [50, 50, 50]
    assert all(10 <= token < 600 for p in prompts for token in p)


class FakeGenerator:
    """Takes one second of a fake clock for each output token of a run, however many sequences it has."""

    vocab_size = 1000
    max_model_len = 10_000

    def __init__(self) -> None:
        self.now_s = 0.0

    def generate(self, prompts: Sequence[list[int]], output_tokens: int) -> None:
        self.now_s += output_tokens * (1.0 if len(prompts[0]) < 1000 else 2.0)


@pytest.mark.parametrize(
    ("counted", "prompt", "rate"),
    [("output", 16, 8.0), ("all", 16, 8 * 26 / 10), ("prompt", 16, 12.8), ("later", 6000, 4.0)],
)
def test_measured_rates(
    monkeypatch: pytest.MonkeyPatch, program: Program, counted: str, prompt: int, rate: float
) -> None:
    generator = FakeGenerator()
    monkeypatch.setattr(offline.time, "perf_counter", lambda: generator.now_s)
    result = measure(workload(8, prompt, 10, counted), generator, program, repeats=2)
    assert result.tokens_per_s == pytest.approx(rate)


def test_table_holds_figures_against_limits() -> None:
    figures = OfflineFigures(
        model="toy",
        limits=LIMITS,
        workloads=[Result(name="decode-1", tokens_per_s=20.0, gbps=38.0, gflops=100.0)],
        too_long=["long-decode-6000"],
    )
    text = format_figures(figures)
    row = next(line for line in text.splitlines() if "decode-1" in line)
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "decode-1",
        "20.0",
        "38.0",
        "95%",
        "100",
        "10%",
    ]
    assert text.endswith("longer than the model's context: long-decode-6000")


def test_choice_of_workloads() -> None:
    assert choose(None) == list(WORKLOADS)
    assert [w.name for w in choose(["mix-32", "decode-1"])] == ["mix-32", "decode-1"]
    with pytest.raises(UsageError, match="choose from decode-1"):
        choose(["decode-3"])
