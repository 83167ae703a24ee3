"""A model by several ranks, every kernel in the interpreter: the bits of one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from firelane.backends.cuda.assembly import assemble
from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.loading.loading import load_weights
from firelane.contract import SAMPLE, SCORE, StepLimits
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.features import with_hidden, with_streams
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.host_ranks import HostGroup
from tests.backends.cuda.lean import lean
from tests.backends.executor_contract import Batch
from tests.models.families import make_checkpoint
from tests.models.toy_config import VOCAB_SIZE
from tests.weights.quantized.test_quantized import CONFIG, write_quantized

LIMITS = StepLimits(
    max_num_seqs=2,
    max_num_batched_tokens=4,
    max_output_rows=4,
    max_model_len=32,
    block_size=16,
    num_blocks=32,
)
PROMPT = np.random.default_rng(5).integers(0, VOCAB_SIZE, 6).tolist()


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


def outputs(directory: Path, layout: RankLayout, rank: int, device: Device, *, tells: bool = False) -> bytes:
    """Tokens and log-probabilities of a prompt in two parts, and of a decoded token. tells: and features."""
    checkpoint = Checkpoint.open(directory)
    whole = fitted(load_program(read_config(directory)), checkpoint)
    whole = with_hidden(with_streams(whole, (1, 0))) if tells else whole
    program = rank_program(whole, layout, rank)
    weights = load_weights(program, checkpoint, device, threads=1)
    limits = replace(LIMITS, spans=program.spans, state_bytes=program.state_bytes)
    batch = Batch(assemble(program, limits=limits, device=device, weights=weights))
    batch.install(1, PROMPT, temperature=0.0, logprobs=3)
    last = len(PROMPT) - 1
    steps = [
        (1, 0, 4, dict.fromkeys(range(4), SCORE)),
        (1, 4, last - 3, {last: SAMPLE}),
    ]
    found = b""
    for chunk in steps:
        got, rows = batch.step(chunk), len(chunk[3])
        assert rank != layout.sampler or np.isfinite(got.logprobs[:rows]).all()
        found += got.tokens[:rows].tobytes() + got.logprobs[:rows].tobytes() + got.top_ids[:rows].tobytes()
        found += got.features[: chunk[2]].tobytes()
    return found


def of_ranks(directory: Path, layout: RankLayout, *, tells: bool = False) -> bytes:
    group = HostGroup(layout)
    work: Callable[[int, Device], bytes] = lambda rank, device: outputs(  # noqa: E731
        directory, layout, rank, device, tells=tells
    )
    return group.run(work)[layout.sampler]


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("qwen3_next", RankLayout(tp=2, experts=2)),  # heads, states of heads, routed and shared experts
        ("qwen3_moe", RankLayout(pp=2, experts=2)),  # stages whose ranks share experts alone
    ],
    ids=str,
)
def test_the_bits_of_one_rank(family: str, layout: RankLayout, tmp_path: Path) -> None:
    directory = make_checkpoint(family, "bfloat16", tmp_path)
    alone = outputs(directory, RankLayout(), 0, HostDevice(warm=False))
    assert of_ranks(directory, layout) == alone


def test_features_have_the_bits_of_one_rank(tmp_path: Path) -> None:
    directory = make_checkpoint("llama3", "bfloat16", tmp_path)
    alone = outputs(directory, RankLayout(), 0, HostDevice(warm=False), tells=True)
    assert of_ranks(directory, RankLayout(tp=2), tells=True) == alone


def test_the_bits_of_one_rank_in_codes(tmp_path: Path) -> None:
    """The ranks cut through groups of 32 inputs."""
    directory = write_quantized("int4", tmp_path, CONFIG | {"num_hidden_layers": 1})
    alone = outputs(directory, RankLayout(), 0, HostDevice(warm=False))
    assert of_ranks(directory, RankLayout(tp=2)) == alone
