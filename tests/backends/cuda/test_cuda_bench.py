"""The GPU benchmarks where there is no GPU: small models in the interpreter, tables, what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from firelane.backends.cuda.device import gpu_detection
from firelane.backends.cuda.device.launch import Launch
from firelane.contract import SlotState
from firelane.errors import MachineError
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean

SCRIPTS = Path(__file__).parents[3] / "benchmarks"
MODULES = (
    "cuda_report",
    "cuda_clock",
    "cuda_limits",
    "cuda_llama",
    "cuda_drive",
    "cuda_kernels",
    "cuda_steps",
    "cuda_tune",
)


ENVIRON = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent)}


@pytest.fixture(scope="module")
def b() -> Iterator[Any]:
    """The modules, found beside each other as when one of them runs."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield type("Scripts", (), {name.removeprefix("cuda_"): __import__(name) for name in MODULES})
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture
def device() -> HostDevice:
    return HostDevice(memory_bytes=1 << 34, warm=False)


@pytest.fixture(autouse=True, scope="module")
def _lean() -> Iterator[None]:
    with lean():
        yield


def limits(b: Any, **changes: float) -> Any:
    settings = dict.fromkeys(("pinned_gbps", "graph_node_us", "replay_us", "launch_us"), 1.0)
    rates = {"copy_gbps": 4000.0, "read_gbps": 4200.0, "bf16_tflops": 800.0}
    return b.limits.Limits(**{**settings, **rates, **changes})


def test_limits_are_measured_and_shown(b: Any, device: HostDevice) -> None:
    sizes = b.limits.Sizes(copy_bytes=1 << 20, pinned_bytes=1 << 16, matmul=32, nodes=3)
    found = b.limits.measure_limits(device, b.clock.HostClock(), sizes)
    assert all(value > 0 for value in vars(found).values())
    assert "bf16 product" in str(b.limits.table(found))


def test_roofline_is_the_longer_of_bytes_and_operations(b: Any) -> None:
    found = limits(b)
    assert found.memory_gbps == 4200.0
    assert found.seconds(4200e9, 1.0) == pytest.approx(1.0)
    assert found.seconds(1.0, 1600e12) == pytest.approx(2.0)


@pytest.mark.parametrize(("rows", "decode"), [(1, True), (256, True), (2048, False), (8192, False)])
def test_steps_have_the_rows_that_they_are_named_by(b: Any, rows: int, decode: bool) -> None:
    chunks = b.kernels.chunks_of(rows)
    bucket = b.kernels.bucket_of(chunks)
    assert bucket.tokens == rows
    assert bucket.decode == decode
    assert b.drive.shape_of(chunks).tokens == rows
    assert max(length for _, _, length in chunks) <= b.kernels.PROMPT


def test_costs_of_chunks(b: Any) -> None:
    shape = b.drive.shape_of([(0, 10, 1), (1, 0, 3)])
    assert (shape.tokens, shape.outputs, shape.sequences) == (4, 2, 2)
    assert shape.attended == 11 + (1 + 2 + 3)
    assert shape.context == 11 + 3


def test_kernels_of_a_small_model(b: Any, device: HostDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MOST_DECODING": 2, "CONTEXT": 5, "PROMPT": 8}.items():
        monkeypatch.setattr(b.kernels, name, value)
    program = b.llama.program_of(b.llama.TINY, layers=1)
    *_, rows = b.kernels.measure(program, [2, 12], device, b.clock.HostClock())
    kinds = {row.kind for row in rows}
    assert {"qkv", "output", "gate_up", "down", "lm_head", "Attention", "RMSNorm", "Sample"} <= kinds
    assert {(row.form, row.rows) for row in rows} == {(f, n) for f in b.kernels.FORMS for n in (2, 12)}
    assert all(row.seconds > 0 for row in rows)
    plain = [row for row in rows if row.form == "bf16" and row.kind == "down"]
    assert all(row.library_s for row in plain)
    page = str(b.kernels.table("bf16", plain, limits(b)))
    assert page.count("| down") == 2
    total = next(row for row in rows if row.kind == "all together")
    parts = [row for row in rows if row.form == total.form and row.rows == total.rows and row is not total]
    assert total.flops == pytest.approx(sum(row.flops * row.count for row in parts))


def test_steps_of_a_small_model(b: Any, device: HostDevice) -> None:
    program = b.llama.program_of(b.llama.TINY, layers=1)
    plan = b.steps.Plan(slots=3, sequences=(1, 3), context=5, steps=1, prompt=12, step_tokens=8)
    *_, figures = b.steps.measure(program, ["lossless", "library"], device, plan, limits(b))
    assert [(d.form, d.sequences) for d in figures.decodes] == [
        (form, n) for form in ("lossless", "library") for n in (1, 3)
    ]
    assert figures.agreements[0] == "lossless: a sequence drew the same tokens in batches of all sizes"
    assert all(m.planned > m.weights > 0 for m in figures.memory)
    text = "\n".join(map(str, b.steps.tables(figures)))
    assert "lossless, 3 x 1" in text
    assert "12 tokens in steps of 8" in text


def test_tuning_goes_by_what_matters_most(b: Any) -> None:
    program = b.llama.program_of(b.llama.LLAMA_8B, layers=1)
    shapes = b.tune.in_order(list(b.tune.shapes_of(program, b.tune.LIMITS, is_coded=True)))
    assert len(shapes) == len(set(shapes)) > 40
    assert [s.max_rows for s in shapes[:5]] == [1] * 5
    assert next(s.max_rows for s in shapes[5:]) == 256
    assert {s.rows for s in shapes} == {6144, 4096, 28672, 128256}


def test_tuning_measures_until_the_time_is_over(b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class MadeUp:
        def measure(self, runs: Any) -> float:
            return float(len(runs))

    compiled: list[Any] = []
    monkeypatch.setattr(b.tune, "compile_ahead", lambda shapes: compiled.append(list(shapes)))
    shapes = [
        b.tune.ProductShape(rows=4096, k=14336, gated=False, max_rows=n, is_coded=False) for n in (1, 2, 4)
    ]
    ask = {"stopwatch": MadeUp(), "device": torch.device("meta")}
    *_, found = b.tune.measure(shapes, minutes=1.0, **ask)
    assert list(found) == shapes
    assert compiled == [shapes[:1], shapes[1:2], shapes[2:], []]
    assert list(b.tune.measure(shapes, minutes=0.0, **ask)) == []
    figures = b.tune.figures_of(Path("table.json"), shapes, {shapes[0]: found[shapes[0]]})
    assert figures.left_out == shapes[1:]
    assert "2 shapes were not reached" in str(b.tune.table(figures))
    json.dumps(b.tune.record_of(figures))


def test_candidates_that_do_not_compile_are_left_to_the_stopwatch(
    b: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def refuse_some(self: Launch) -> None:
        compiled.append(self.name)
        if self.warps == 8:
            raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(Launch, "compile", refuse_some)
    b.tune.compile_ahead([b.tune.ProductShape(rows=28672, k=4096, gated=True, max_rows=1, is_coded=False)])
    assert len(compiled) > 3


def test_tuning_goes_on_and_keeps_what_it_found_when_the_device_fails(
    b: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shapes = [b.tune.ProductShape(rows=64, k=128, gated=False, max_rows=n, is_coded=False) for n in (1, 2, 4)]
    b.tune.store.write(tmp_path, "H200", {shapes[0]: b.tune.by_rule(shapes[0])})
    asked: list[int] = []

    def measure(missing: list[Any], **_: Any) -> Iterator[dict[Any, Any]]:
        asked.extend(s.max_rows for s in missing)
        config = b.tune.by_rule(missing[0])
        yield {missing[0]: b.tune.Measured(missing[0], config, {config: 1.0})}
        raise MachineError("the GPU failed")

    published: list[str] = []
    monkeypatch.setattr(b.tune, "measure", measure)
    monkeypatch.setattr(b.tune, "publish", lambda _, tables, *__: published.append(str(tables[0])))
    arguments = b.tune.arguments_of(["--cache-dir", str(tmp_path)])
    with pytest.raises(MachineError):
        b.tune.tune_missing(shapes, "H200", None, arguments)
    assert asked == [2, 4]
    assert "1 shapes were not reached" in published[0]
    assert set(b.tune.store.read(tmp_path, "H200")) == set(shapes[:2])


def test_tokens_that_differ_are_told(b: Any) -> None:
    def form(drawn: dict[int, list[list[int]]]) -> Any:
        return b.steps.Form(decodes=[], prefills=[], memory=None, drawn=drawn)

    told = b.steps.agreements(
        {
            "bf16": form({1: [[4], [5]], 2: [[4, 1], [6, 1]]}),
            "lossless": form({1: [[4], [5]], 2: [[4, 1], [5, 1]]}),
        }
    )
    assert told == [
        "bf16: a sequence drew OTHER tokens in batches of all sizes",
        "lossless: a sequence drew the same tokens in batches of all sizes",
        "lossless: OTHER tokens than bf16",
    ]
    with pytest.raises(SystemExit, match=r"bf16: a sequence drew OTHER .*; lossless: OTHER tokens than bf16"):
        b.steps.check_agreements(told)
    b.steps.check_agreements(told[1:2])


def test_cost_of_invariance(b: Any) -> None:
    def decode(form: str, turn: float) -> Any:
        times = b.drive.StepTimes(turn=turn, submit=0.0, wait=turn)
        return b.steps.Decode(form=form, sequences=8, times=times, roofline_s=0.5)

    def prefill(form: str, seconds: float) -> Any:
        return b.steps.Prefill(form=form, tokens=64, step_tokens=32, seconds=seconds, flops=1e12)

    figures = b.steps.Figures(
        limits=limits(b),
        decodes=[decode("bf16", 1.1), decode("library", 1.0)],
        prefills=[prefill("bf16", 0.9), prefill("library", 1.0)],
        memory=[],
        agreements=[],
    )
    text = str(b.steps.gemm_table(figures))
    assert "+10.0%" in text
    assert "-10.0%" in text
    assert figures.decodes[0].share == pytest.approx(0.5 / 1.1)


def test_sequences_own_their_blocks(b: Any) -> None:
    made = b.drive.limits_for(sequences=3, longest=512, step_tokens=64, kept_tokens=70)
    state = SlotState.allocate(made, 100)
    b.drive.fill_slots(state, made, 100)
    assert made.num_blocks == 8  # one sequence of 512 tokens
    assert state.block_tables[0, :, :2].ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert state.block_tables.max() < made.num_blocks


def test_share_of_the_limit(b: Any) -> None:
    row = b.kernels.Row(form="bf16", rows=1, kind="down", count=1, seconds=2.0, nbytes=4200e9, flops=0.0)
    assert row.share(limits(b)) == pytest.approx(0.5)
    assert replace(row, seconds=1.0).share(limits(b)) == pytest.approx(1.0)


@pytest.mark.skipif(not gpu_detection.detect().problem, reason="there is a GPU here")
@pytest.mark.parametrize("name", ["limits", "kernels", "steps"])
def test_they_look_for_a_gpu_first(b: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(MachineError, match="--backend cuda: no NVIDIA GPU"):
        getattr(b, name).main()


@pytest.mark.skipif(not gpu_detection.detect().problem, reason="there is a GPU here")
def test_without_a_gpu_they_say_so() -> None:
    command = [sys.executable, str(SCRIPTS / "cuda_limits.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRON)
    assert done.returncode != 0
    assert "--backend cuda: no NVIDIA GPU" in done.stderr
    assert "Traceback" not in done.stderr
