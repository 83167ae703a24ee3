"""The CUDA backend under the whole engine, its kernels in the interpreter: tokens and log-probabilities are
the same bits alone and in company, with preemption and with the prefix cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from firelane.backends.cuda import loader
from firelane.engine_config import ExecutorConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean
from tests.engine.test_cpu_schedules import random_requests, run
from tests.models.families import make_checkpoint

SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 40, "max_model_len": 64, "block_size": 16}


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "llama3"
    return make_checkpoint("llama3", "bfloat16", directory, num_hidden_layers=1)


def load(model_dir: Path, *, blocks: int):
    program = load_program(read_config(model_dir))
    block_bytes = program.kv_bytes_per_token * SIZES["block_size"]
    config = ExecutorConfig(cache_dir=Path("/nowhere"), kv_cache_bytes=blocks * block_bytes, **SIZES)
    device = HostDevice(warm=False, memory_bytes=2 << 30)
    return loader.load_on(device, program, Checkpoint.open(model_dir), config, lambda *_: None)


def test_company_preemption_and_a_cached_prefix_change_no_bit(model_dir):
    """Four prompts that each outgrow their block fill the cache; then twice the same long prompt."""
    prompts = [range(n, n + 14) for n in (3, 40, 77, 110)] + [range(60, 80)] * 2
    requests = [
        replace(
            r,
            prompt=np.array(prompt, np.int32).tobytes(),
            sampling=replace(r.sampling, max_tokens=4, prompt_logprobs=-1),
        )
        for r, prompt in zip(random_requests(np.random.default_rng(2), 6), prompts, strict=True)
    ]
    executor = load(model_dir, blocks=5)
    alone = {}
    for request in requests:
        alone |= run(executor, {0: [request]}).heard
    together = run(executor, {0: requests[:4], 16: requests[4:5], 22: requests[5:]})
    assert together.heard == alone
    assert together.most_running > 1
    assert together.cached > 0
    assert together.preemptions > 0
