"""Whole models on a GPU: near the CPU's numbers, and the same bits however a sequence is computed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firelane import LLM, SamplingParams
from firelane.bench.client import LoadClient, first_model
from firelane.bench.serve import ServeLoad, run_load
from firelane.bench.server import ServerProcess
from firelane.bench.workload import BenchRequest
from firelane.errors import CompilerError

pytestmark = pytest.mark.gpu
PROMPTS = (
    "import os\n",
    "def main():\n    parser = argparse.ArgumentParser(",
    "class Queue:\n    def __init__(self, maxsize=0):\n",
    "for index, line in enumerate(" * 12,
)
SIZES: dict[str, Any] = {"max_num_seqs": 64, "max_model_len": 512, "kv_cache_bytes": 256 << 20}
TEXT = Path(__file__).read_text()[:1000]


@contextmanager
def model(cache_dir: Path, **changes: Any) -> Iterator[LLM]:
    with LLM(**{"backend": "cuda", "cache_dir": cache_dir} | SIZES | changes) as llm:
        yield llm


def greedy(llm: LLM, prompts: Sequence[str], tokens: int = 24) -> list[Any]:
    """Return each prompt's tokens and their log-probabilities, to the bit."""
    params = SamplingParams(max_tokens=tokens, temperature=0, logprobs=2, ignore_eos=True)
    return [
        (
            output.outputs[0].token_ids,
            [[x.logprob for x in step.values()] for step in output.outputs[0].logprobs],
        )
        for output in llm.generate(list(prompts), params)
    ]


def prompt_logprobs(llm: LLM, text: str) -> list[float]:
    (output,) = llm.generate([text], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert output.prompt_logprobs is not None
    return [next(iter(step.values())).logprob for step in output.prompt_logprobs if step]


@pytest.fixture(scope="module")
def alone(cache_dir: Path) -> list[Any]:
    """Each prompt in steps of its own."""
    with model(cache_dir) as llm:
        return [greedy(llm, [prompt])[0] for prompt in PROMPTS]


def test_log_probabilities_are_near_the_cpus(cache_dir: Path) -> None:
    with model(cache_dir) as llm:
        ours = prompt_logprobs(llm, TEXT)
    try:
        with model(cache_dir, backend="cpu") as llm:
            theirs = prompt_logprobs(llm, TEXT)
    except CompilerError as error:
        pytest.skip(f"no C++ compiler: {error}")
    difference = np.abs(np.array(ours) - np.array(theirs))
    assert len(ours) > 200
    assert difference.mean() < 0.03
    assert difference.max() < 0.5


def test_a_batch_changes_no_bit(cache_dir: Path, alone: list[Any]) -> None:
    with model(cache_dir) as llm:
        assert greedy(llm, PROMPTS) == alone
        assert greedy(llm, PROMPTS * 12) == alone * 12


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 64},
        {"block_size": 16},
        {"block_size": 128},
        {"prefix_cache": False},
        {"weights": "bf16"},
        {"weights": "lossless"},
        {"max_num_seqs": 3, "max_num_batched_tokens": 17},
    ],
    ids=lambda changes: ",".join(f"{k}={v}" for k, v in changes.items()),
)
def test_no_size_and_no_form_changes_a_bit(
    cache_dir: Path, alone: list[Any], changes: dict[str, Any]
) -> None:
    with model(cache_dir, **changes) as llm:
        assert greedy(llm, PROMPTS) == alone


def test_library_products_are_near(cache_dir: Path) -> None:
    with model(cache_dir) as llm:
        ours = prompt_logprobs(llm, TEXT)
    with model(cache_dir, gemm="library") as llm:
        theirs = prompt_logprobs(llm, TEXT)
    assert np.abs(np.array(ours) - np.array(theirs)).mean() < 0.03


def test_a_seed_gives_the_same_tokens_in_any_company(cache_dir: Path) -> None:
    params = SamplingParams(max_tokens=24, temperature=1.0, top_p=0.9, top_k=50, seed=7)
    with model(cache_dir) as llm:
        (first,) = llm.generate([PROMPTS[0]], params)
        others = llm.generate([*PROMPTS[1:], PROMPTS[0], *PROMPTS[1:]], params)
    assert others[3].outputs[0].token_ids == first.outputs[0].token_ids


def test_cached_prefixes_change_no_bit(cache_dir: Path) -> None:
    with model(cache_dir) as llm:
        first, again = greedy(llm, [TEXT]), greedy(llm, [TEXT])
        (output,) = llm.generate([TEXT], SamplingParams(max_tokens=1))
        assert output.num_cached_tokens > 0
    assert again == first


def test_models_side_by_side_and_in_a_thread_change_no_bit(cache_dir: Path, alone: list[Any]) -> None:
    """Each has a stream of its own, whatever thread asks it."""
    with model(cache_dir) as one, model(cache_dir, weights="bf16") as other:
        assert [greedy(llm, [p])[0] for p in PROMPTS for llm in (one, other)] == [
            a for a in alone for _ in "12"
        ]
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(greedy, one, PROMPTS).result() == alone


def test_a_closed_model_gives_its_memory_back(cache_dir: Path) -> None:
    """PyTorch's count, of this process alone."""
    before = torch.cuda.memory_reserved()
    with model(cache_dir) as llm:
        assert torch.cuda.memory_reserved() - before > SIZES["kv_cache_bytes"]
    assert torch.cuda.memory_reserved() - before < 32 << 20
    del llm  # held until here


def test_output_that_follows_a_grammar(cache_dir: Path) -> None:
    with model(cache_dir) as llm:
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=1, regex="[0-9]{4}-[0-9]{2}")
        (output,) = llm.generate([PROMPTS[0]], params)
    year, _, month = output.outputs[0].text.partition("-")
    assert (year + month).isdigit()
    assert (len(year), len(month)) == (4, 2)


def test_the_server_on_a_gpu() -> None:
    arguments = ["--backend", "cuda", "--max-model-len", "512", "--kv-cache-gib", "0.5"]
    environ = {**os.environ, "FIRELANE_LOG_LEVEL": "debug"}
    with ServerProcess(arguments, environ=environ, timeout_s=180.0) as server:
        client = LoadClient(server.url, first_model(server.url), extra={"ignore_eos": True, "temperature": 0})
        outcomes, _ = run_load(
            client, [BenchRequest(prompt=p, output_tokens=24) for p in PROMPTS], ServeLoad()
        )
        assert "device memory used" in server.log
    assert [o.error for o in outcomes] == [""] * len(PROMPTS)
    assert all(o.output_tokens == 24 for o in outcomes)
