"""The kernel benchmark: grouping of times, and a run on the embedded model."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.bench import kernels
from firelane.bench.kernels import decode_shape, describe, format_kernels, group_times, run_kernels
from firelane.contract import CAUSAL
from firelane.doctor.limits import Limits
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.sources.resolve import EMBEDDED
from firelane.weights.progress import silent

LIMITS = Limits(
    threads=1,
    read_gbps=40.0,
    read_gbps_1=40.0,
    dot_gflops=0.0,
    dot_gflops_1=0.0,
    fma_gflops=100.0,
    fma_gflops_1=100.0,
)


@pytest.fixture(scope="module")
def program() -> Program:
    return load_program(read_config(EMBEDDED))


def test_groups_hold_all_ops_and_all_time(program: Program) -> None:
    seconds = [float(i) for i in range(1, len(program.ops) + 1)]
    groups = group_times(program, 4, seconds)
    assert sum(g.count for g in groups) == len(program.ops)
    assert sum(g.seconds for g in groups) == pytest.approx(sum(seconds))
    assert len({g.op for g in groups}) == len(groups)
    flops = sum(g.gflops * g.seconds for g in groups) * 1e9
    assert flops == pytest.approx(program.cost(decode_shape(4)).flops)


def test_bytes_are_those_in_memory(program: Program) -> None:
    seconds = [1.0] * len(program.ops)
    whole = {g.op: g.gbps for g in group_times(program, 1, seconds)}
    codes = group_times(program, 1, seconds, stored=lambda weight: weight.nbytes // 4)
    coded = {g.op: g.gbps for g in codes}
    assert coded["GatedLinear 1408x256"] == pytest.approx(whole["GatedLinear 1408x256"] / 4)
    assert coded["Attention"] == whole["Attention"]  # reads pages


def test_description_names_kind_and_shape(program: Program) -> None:
    names = {describe(op) for op in program.ops}
    assert {"Embed 4096x256", "RMSNorm", "GatedLinear 1408x256", "Sample"} <= names


def test_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernels, "measure_limits", lambda *_, **__: LIMITS)
    settings = Environment(cache_dir=tmp_path)
    figures = run_kernels(EMBEDDED, settings, rows=(1, 3), threads=1, progress=silent)
    linear = [k for k in figures.kernels if k.op == "Linear 256x704"]
    assert [k.rows for k in linear] == [1, 3]
    assert all(0 < k.seconds < 1 for k in linear)
    assert "Linear 256x704 (x6)" in format_kernels(figures)


def test_rows_beyond_the_cache_are_refused() -> None:
    class Small:
        class limits:  # noqa: N801 the attribute's name
            block_size, num_blocks, max_model_len, spans = 16, 8, 2048, (CAUSAL,)

        state = None

    with pytest.raises(UsageError, match="room for 1 sequences"):
        kernels.decode_inputs(Small(), 2)  # type: ignore[arg-type]
