"""Embeddings of the CPU backend through the engine, against the last hidden state of transformers; the same
bits in chunks, in company and with a prefix from the cache. Families with and without a window, of those that
other tests of engines compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame
from tests.models.families import make_checkpoint
from tests.models.toy_config import VOCAB_SIZE, WINDOW

LENGTHS = (1, 2, 17, WINDOW, WINDOW + 40)
POOLINGS = ("last", "mean")
# Largest error relative to the largest number of a vector. float32: the order of sums. bf16: a few roundings
# of 2^-9 each layer, and the last one of the state itself.
BOUNDS = {"float32": 2e-5, "bfloat16": 0.03}
F32 = NDArray[np.float32]


class Collector:
    """A channel that keeps the embeddings."""

    def __init__(self) -> None:
        self.vectors: dict[int, F32] = {}
        self.cached: dict[int, int] = {}

    def receive(self, wait_s: float | None) -> tuple[()]:  # noqa: ARG002
        return ()

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        self.cached |= {started.id: started.cached_tokens for started in frame.started}
        for embedding in frame.embeddings:
            self.vectors[embedding.id] = np.frombuffer(embedding.values, "<f4")


def prompts() -> list[NDArray[np.int32]]:
    return [np.random.default_rng(n).integers(0, VOCAB_SIZE, n, np.int32) for n in LENGTHS]


def run(directory: Path, cache_dir: Path, *waves: str, **sizes: int) -> Collector:
    """All prompts pooled as each of `waves` says, a wave after the other; ids count on. A sequence that
    generates keeps them company."""
    config = EngineConfig(
        model_dir=directory, threads=2, kv_cache_bytes=8 << 20, cache_dir=cache_dir, block_size=16, **sizes
    )
    executor, channel = load_executor(config, lambda *_: None), Collector()
    core = EngineCore(executor, channel)
    company = Sampling(temperature=0.0, max_tokens=100, prompt_logprobs=1)
    core.submit(NewRequest(id=-1, prompt=prompts()[3].tobytes(), sampling=company))
    for wave, pooling in enumerate(waves):
        wanted = {wave * len(LENGTHS) + i: prompt for i, prompt in enumerate(prompts())}
        for i, prompt in wanted.items():
            core.submit(NewRequest(id=i, prompt=prompt.tobytes(), sampling=Sampling(), pooling=pooling))
        while not wanted.keys() <= channel.vectors.keys():
            core.step()
            core.check_integrity()
    executor.release()  # while the company's step runs
    return channel


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    base = tmp_path_factory.mktemp("embedding-families")
    return cache(lambda name, dtype: make_checkpoint(name, dtype, base / f"{name}-{dtype}"))


def oracle(directory: Path, tokens: NDArray[np.int32]) -> F32:
    """The last hidden states, after the final norm, from transformers in float32: [tokens, width]."""
    model = transformers.AutoModel.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model.eval()(torch.tensor(tokens[None].astype(np.int64))).last_hidden_state[0].numpy()


@pytest.mark.parametrize(
    ("family", "dtype"), [("llama_bias", "float32"), ("llama3", "bfloat16"), ("olmo3", "float32")]
)
def test_embeddings_against_transformers(checkpoints, kernel_cache: Path, family: str, dtype: str) -> None:
    directory = checkpoints(family, dtype)
    vectors = run(directory, kernel_cache, *POOLINGS, max_num_seqs=8, max_num_batched_tokens=48).vectors
    for i, prompt in enumerate(prompts()):
        states = oracle(directory, prompt)
        for got, expected in ((vectors[i], states[-1]), (vectors[i + len(LENGTHS)], states.mean(0))):
            assert got.shape == expected.shape
            assert np.abs(got - expected).max() < BOUNDS[dtype] * np.abs(expected).max()
    assert np.abs(vectors[4] - vectors[9]).max() > 0.5  # else the two would not be told apart


def test_the_same_bits_in_any_chunks(checkpoints, kernel_cache: Path) -> None:
    directory = checkpoints("llama3", "bfloat16")
    small = run(directory, kernel_cache, *POOLINGS, max_num_seqs=3, max_num_batched_tokens=19)
    large = run(directory, kernel_cache, *POOLINGS[::-1], max_num_seqs=16, max_num_batched_tokens=256)
    assert small.cached[4] == 0
    assert large.cached[9] >= 16  # the prompt was pooled before
    for i in range(len(LENGTHS)):
        assert small.vectors[i].tobytes() == large.vectors[i + len(LENGTHS)].tobytes()
        assert small.vectors[i + len(LENGTHS)].tobytes() == large.vectors[i].tobytes()
