"""The benchmark of instruction-set targets: which are measured, the prompt's step, and a run on the embedded
model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firelane.bench import targets
from firelane.bench.targets import format_targets, prefill_inputs, run_targets
from firelane.contract import CAUSAL, SlotState, StepLimits
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.native.machine import cpu_identity, supported_isas
from firelane.sources.resolve import EMBEDDED
from firelane.weights.progress import silent

BEST = supported_isas(cpu_identity())[0]


class Probe:
    """A machine of a round figure each."""

    def read_gbps(self, threads: int) -> float:
        return 10.0 * threads

    def dot_gflops(self, threads: int) -> float:
        return 0.0 * threads

    def fma_gflops(self, threads: int) -> float:
        return 100.0 * threads


def test_all_means_those_of_this_machine() -> None:
    assert targets.targets(["all"]) == supported_isas(cpu_identity())
    assert targets.targets(["portable"]) == ("portable",)


def test_a_target_that_the_machine_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--isa mmx: this CPU runs .*portable; choose some, or all"):
        targets.targets(["portable", "mmx"])


def test_a_prompt_has_pages_of_its_own_in_each_group() -> None:
    class Executor:
        limits = StepLimits(
            max_num_seqs=2,
            max_num_batched_tokens=64,
            max_output_rows=2,
            max_model_len=256,
            block_size=16,
            num_blocks=32,
            spans=(CAUSAL, CAUSAL),
        )
        vocab_size = 64
        state = SlotState.allocate(limits, vocab_size)

    inputs = prefill_inputs(Executor(), 40)  # type: ignore[arg-type]
    assert (inputs.num_chunks, inputs.num_tokens, inputs.num_rows) == (1, 40, 1)
    assert (inputs.chunk_start[0], inputs.chunk_len[0], inputs.row_token[0]) == (0, 40, 39)
    np.testing.assert_array_equal(Executor.state.block_tables[:, 0, :3], [[0, 1, 2], [3, 4, 5]])


def test_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(targets, "build_probe", lambda *_: Probe())
    monkeypatch.setattr(targets, "LEAST_SECONDS", 0.0)
    settings = Environment(cache_dir=tmp_path)
    figures = run_targets(EMBEDDED, settings, isas=[BEST], threads=1, progress=silent)
    assert [f.step for f in figures] == ["decode 1", "decode 8", "prefill 512"]
    assert all(f.isa == BEST and f.tokens_per_s > 0 and f.of_read > 0 and f.of_peak > 0 for f in figures)
    assert f"{BEST} " in format_targets(figures)
