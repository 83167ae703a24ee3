"""The GPU benchmarks of the whole server, as far as they go without a GPU: checkpoints, starts, tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firelane import LLM, SamplingParams
from firelane.bench.server import ServerProcess
from firelane.errors import MachineError
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.backends.cuda.test_cuda_bench import SCRIPTS, limits

MODULES = ("report", "limits", "llama", "drive", "checkpoint", "start", "serving", "transformers")


@pytest.fixture(scope="module")
def b() -> Iterator[Any]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield type("Scripts", (), {name: __import__(f"cuda_{name}") for name in MODULES})
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def model(b: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    b.checkpoint.write_model(directory, b.llama.TINY, shards=3)
    return directory


def test_checkpoint_is_what_the_program_reads(b: Any, model: Path) -> None:
    program = b.llama.program_of(b.llama.TINY)
    checkpoint = Checkpoint.open(model)
    checkpoint.check_against(program)
    nbytes = sum(p.stat().st_size for p in model.glob("*.safetensors"))
    total = sum(t.nbytes for t in b.checkpoint.tensors_of(program))
    assert total < nbytes < total + 20_000
    assert len(list(model.glob("*.safetensors"))) == 3


def test_checkpoint_is_random_and_written_once(b: Any, model: Path) -> None:
    checkpoint = Checkpoint.open(model)
    rows = np.asarray(checkpoint.rows("model.layers.0.mlp.down_proj.weight", 0, 8))
    assert np.unique(rows).size > 100
    before = {p: p.stat().st_mtime_ns for p in model.iterdir()}
    b.checkpoint.write_model(model, b.llama.TINY, shards=3)
    assert {p: p.stat().st_mtime_ns for p in model.iterdir()} == before


def test_shards_are_even(b: Any) -> None:
    shape = b.checkpoint.TensorShape
    tensors = [shape(name=str(i), shape=(n, 4)) for i, n in enumerate((1, 9, 5, 5, 9, 1))]
    parts = b.checkpoint.split_evenly(tensors, 3)
    assert [t for part in parts for t in part] == tensors
    assert max(sum(t.elements for t in part) for part in parts) <= 2 * 40


@pytest.mark.parametrize("vocab_size", [160, 5000])
def test_tokenizer_has_the_ids_of_the_model(b: Any, tmp_path: Path, vocab_size: int) -> None:
    b.checkpoint.write_tokenizer(tmp_path, vocab_size)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values())[-1] == vocab_size - 1


def test_model_is_complete(model: Path, kernel_cache: Path) -> None:
    with LLM(str(model), backend="null", cache_dir=kernel_cache) as llm:
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 3


def test_a_start_is_timed_by_what_it_says(b: Any, model: Path, kernel_cache: Path) -> None:
    command = [sys.executable, "-m", "firelane", "serve", str(model), "--port", "0", "--backend", "null"]
    environ = {**os.environ, "FIRELANE_CACHE_DIR": str(kernel_cache)}
    start = b.start.measure_start("first", command, environ)
    assert 0 < start.ready_s < start.first_token_s
    assert any("engine_ready" in line for _, line in start.said)
    figures = b.start.Figures(limits=limits(b), weights_bytes=10**9, starts=[start])
    text = "\n".join(map(str, b.start.tables(figures)))
    assert "| floor: the bytes from pinned memory" in text
    assert "engine_ready" in text


def test_a_start_that_fails_says_why(b: Any) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such GPU')"]
    with pytest.raises(MachineError, match="did not become ready: no such GPU"):
        b.start.measure_start("first", command, dict(os.environ))


def test_load_on_a_server_and_its_table(b: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(b.serving, "VOCABULARY", 150)
    monkeypatch.setattr(b.serving, "WARM_UP", 2)
    short = [b.serving.BenchRequest(prompt=[20, 21, 22], output_tokens=n) for n in (3, 5, 8)]
    monkeypatch.setattr(b.serving, "requests_of", lambda *_, **__: short)
    with ServerProcess([str(model), "--backend", "null"]) as server:
        summary, cpu = b.serving.measure(server, short, 2)
    assert summary.output_tokens == 16
    figures = b.serving.Figures(
        limits=limits(b),
        concurrency=2,
        summary=summary,
        cpu=cpu,
        roofline_tokens_per_s=b.serving.roofline(limits(b), short, 2),
    )
    text = "\n".join(map(str, b.serving.tables(figures)))
    assert "3 requests, 2 at a time, 9 tokens in, 16 out" in text
    assert "| time to first token" in text


def test_roofline_of_the_mix(b: Any) -> None:
    requests = [b.serving.BenchRequest(prompt=[1] * 500, output_tokens=24)]
    rate = b.serving.roofline(limits(b), requests, 200)
    # 16 GB of weights and 200 times 512 tokens of 128 KiB, at 4.2 TB/s
    assert rate == pytest.approx(200 / ((15.0e9 + 200 * 513 * 131072) / 4.2e12), rel=0.02)


def test_prompts_of_the_comparison(b: Any) -> None:
    prompts = b.transformers.prompts_of(20, vocab_size=1000)
    assert prompts == b.transformers.prompts_of(20, vocab_size=1000)
    assert all(10 <= token < 700 for prompt in prompts for token in prompt)
    assert max(map(len, prompts)) <= b.transformers.LONGEST


def test_less_than_the_same_work_is_refused(b: Any) -> None:
    def answers(*counts: int) -> dict[str, Any]:
        return {str(i): SimpleNamespace(generated_tokens=[1] * n) for i, n in enumerate(counts)}

    b.transformers.check(answers(4, 4), 2, 4)
    with pytest.raises(MachineError, match="1 of 2 prompts"):
        b.transformers.check(answers(4), 2, 4)
    with pytest.raises(MachineError, match="1 of them too short"):
        b.transformers.check(answers(4, 3), 2, 4)


def test_table_of_the_comparison(b: Any) -> None:
    def run(name: str, seconds: float) -> Any:
        return b.transformers.Run(name=name, seconds=seconds, output_tokens=100, details="as it comes")

    runs = [run("firelane", 1.0), run("transformers", 3.0)]
    text = str(b.transformers.table(b.transformers.Figures(prompts=10, prompt_tokens=50, runs=runs)))
    assert "3.00x" in text
    assert "- transformers: as it comes" in text
