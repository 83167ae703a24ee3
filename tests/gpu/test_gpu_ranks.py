"""A model on two GPUs: the bits of one, through symmetric memory and through NCCL."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from firelane import LLM, SamplingParams
from firelane.backends.cuda import loader
from firelane.backends.cuda.ranks.device import gpu_of
from firelane.backends.cuda.ranks.group import leader_of, load_led
from firelane.engine_config import ExecutorConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from tests.backends.executor_contract import Batch
from tests.gpu.nccl_rank import MODULE
from tests.models.families import make_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="ranks need a GPU each: two of them"),
]
PROMPTS = ["import os\n", "def main():\n", "for index, line in enumerate(" * 12]
SIZES: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 256, "kv_cache_bytes": 256 << 20}


def found(cache_dir: Path, **options: Any) -> list[Any]:
    """Tokens and log-probabilities of all prompts, to the bit."""
    params = SamplingParams(max_tokens=24, temperature=0, logprobs=2, ignore_eos=True)
    with LLM(backend="cuda", cache_dir=cache_dir, **SIZES, **options) as llm:
        outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params)]
    return [(o.token_ids, [[x.logprob for x in step.values()] for step in o.logprobs]) for o in outputs]


@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_the_bits_of_one_gpu(kind: str, tmp_path: Path) -> None:
    assert found(tmp_path, **{f"{kind}_parallel_size": 2}) == found(tmp_path, gemm="ranks")


@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_rows_that_nccl_brings(kind: str, tmp_path: Path) -> None:
    """Rows go through NCCL, as on GPUs that cannot read each other's memory."""
    directory = make_checkpoint("llama3", "bfloat16", tmp_path / "model")
    program, prompt = load_program(read_config(directory)), list(range(20))
    config = ExecutorConfig(cache_dir=tmp_path, **{f"{kind}_parallel_size": 2}, **SIZES)
    with ExitStack() as stack:
        leader, interconnect = leader_of(program, directory, config, tmp_path / "meeting", MODULE)
        stack.callback(leader.close)
        device = gpu_of(leader.rank, leader.hosts.ranks, interconnect.meeting, gathers=True)
        group = load_led(leader, interconnect, device, lambda *_: None, stack)
        tokens = Batch(group).generate(1, prompt, 8)
        group.release()
    config = ExecutorConfig(cache_dir=tmp_path, gemm="ranks", **SIZES)
    alone = loader.load(program, directory, config, lambda *_: None)
    assert Batch(alone).generate(1, prompt, 8) == tokens
    alone.release()
