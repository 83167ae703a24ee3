"""Families on the CUDA backend, its kernels in the interpreter, against transformers on the same weights:
those that together have all that any has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from firelane.backends.cuda import loader
from firelane.backends.cuda.lowering.supported import check_supported
from firelane.contract import SAMPLE, SCORE
from firelane.engine_config import ExecutorConfig
from firelane.errors import UnsupportedModelError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean
from tests.backends.executor_contract import Batch
from tests.models.covering import covering
from tests.models.families import FAMILIES, make_checkpoint
from tests.models.test_exactness import oracle_logits
from tests.models.toy_config import VOCAB_SIZE

# Largest difference of two log-probabilities; see tests/models/test_exactness.py.
BOUNDS = {"float32": 2e-4, "bfloat16": 0.15}
LENGTH, FIRST = 30, 13
SIZES = {"max_num_seqs": 2, "max_num_batched_tokens": 17, "max_model_len": 64, "block_size": 16}


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


WITHOUT_KERNELS = {
    "deepseek_v32": "sparse attention, whose positions an indexer chooses,",
    "glm_moe_dsa": "sparse attention, whose positions an indexer chooses,",
}
SERVED = [family for family in FAMILIES if family not in WITHOUT_KERNELS]


@pytest.mark.parametrize("family", FAMILIES)
def test_families_without_kernels_are_refused_by_name(family: str) -> None:
    program = load_program(FAMILIES[family]())
    if family not in WITHOUT_KERNELS:
        check_supported(program)
        return
    with pytest.raises(UnsupportedModelError, match=f"no CUDA kernels for {WITHOUT_KERNELS[family]} yet"):
        check_supported(program)


@pytest.mark.parametrize(
    ("family", "dtype"), [*((family, "float32") for family in covering(SERVED)), ("llama3", "bfloat16")]
)
def test_log_probabilities(family: str, dtype: str, tmp_path: Path) -> None:
    directory = make_checkpoint(family, dtype, tmp_path / family)
    tokens = np.random.default_rng(5).integers(0, VOCAB_SIZE, LENGTH).astype(np.int32)
    wanted = torch.log_softmax(torch.from_numpy(oracle_logits(directory, tokens)), -1).numpy()
    batch = load(directory)
    batch.install(1, tokens.tolist(), temperature=0.0, logprobs=1)
    first = batch.step((1, 0, FIRST, dict.fromkeys(range(FIRST), SCORE))).logprobs[:FIRST].copy()
    rest = {p: SCORE for p in range(FIRST, LENGTH - 1)} | {LENGTH - 1: SAMPLE}
    outputs = batch.step((1, FIRST, LENGTH - FIRST, rest))
    found = np.concatenate([first, outputs.logprobs[: LENGTH - FIRST]])
    drawn = int(outputs.tokens[LENGTH - FIRST - 1])
    bound = BOUNDS[dtype]
    assert np.abs(found - wanted[range(LENGTH), [*tokens[1:], drawn]]).max() < bound
    assert wanted[-1].max() - wanted[-1][drawn] < bound


def load(directory: Path) -> Batch:
    program = load_program(read_config(directory))
    config = ExecutorConfig(cache_dir=Path("/nowhere"), threads=2, **SIZES)
    device = HostDevice(warm=False, memory_bytes=2 << 30)
    checkpoint = Checkpoint.open(directory)
    return Batch(loader.load_on(device, program, checkpoint, config, lambda *_: None))
