"""Encoders on the CPU, through the engine, against transformers: what is made of each text, alone and packed
with others into one step, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.errors import UsageError
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame
from tests.models.toy_encoders import CLASSIFIERS, ENCODERS, MAX_LEN, VOCAB_SIZE, make_encoder, oracle

LENGTHS = (1, 2, 15, 16, 17, 47, 64, 65, 130, MAX_LEN)
# The largest error relative to the largest number. float32: the order of sums alone. bf16: a few roundings
# of 2^-9 each layer.
BOUNDS = {"float32": 2e-5, "bfloat16": 0.04}
F32 = NDArray[np.float32]
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


class Kept:
    """A channel that keeps vectors and refusals."""

    def __init__(self) -> None:
        self.vectors: dict[int, F32] = {}
        self.rejected: dict[int, str] = {}

    def receive(self, wait_s: float | None) -> tuple[()]:  # noqa: ARG002
        return ()

    def send(self, frame: StepFrame | Rejected) -> None:
        if isinstance(frame, Rejected):
            self.rejected[frame.id] = frame.message
            return
        for embedding in frame.embeddings:
            self.vectors[embedding.id] = np.frombuffer(embedding.values, "<f4")


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[NDArray[np.int32]]:
    return [np.random.default_rng(n).integers(2, VOCAB_SIZE, n, np.int32) for n in lengths]


def config_of(directory: Path, cache_dir: Path, **sizes: Any) -> EngineConfig:
    return EngineConfig(
        model_dir=directory, threads=2, kv_cache_bytes=8 << 20, cache_dir=cache_dir, block_size=16, **sizes
    )


def embedded(
    directory: Path, cache_dir: Path, prompts: list[NDArray[np.int32]], second_text: int = 0, **sizes: Any
) -> tuple[list[F32], int]:
    """The vector of each prompt, and the number of steps that all of them took."""
    executor, channel = load_executor(config_of(directory, cache_dir, **sizes), lambda *_: None), Kept()
    core = EngineCore(executor, channel)
    for i, prompt in enumerate(prompts):
        core.submit(
            NewRequest(
                id=i,
                prompt=prompt.tobytes(),
                sampling=Sampling(),
                pooling="last",
                second_text=second_text if second_text < len(prompt) else 0,
            )
        )
    steps = 0
    while len(channel.vectors) < len(prompts):
        core.step()
        core.check_integrity()
        steps += 1
        assert steps < 1000, channel.rejected
    executor.release()
    return [channel.vectors[i] for i in range(len(prompts))], steps


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    base = tmp_path_factory.mktemp("encoders")
    return cache(lambda name, dtype: make_encoder(name, dtype, base / f"{name}-{dtype}", MEAN))


def hidden_states(model: torch.nn.Module, tokens: NDArray[np.int32]) -> F32:
    with torch.no_grad():
        return model(torch.tensor(tokens[None].astype(np.int64))).last_hidden_state[0].numpy()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("family", ENCODERS)
def test_vectors_are_those_of_transformers(encoders, kernel_cache: Path, family: str, dtype: str) -> None:
    directory = encoders(family, dtype)
    model, prompts = oracle(directory), texts()
    found, steps = embedded(directory, kernel_cache, prompts, max_num_seqs=8)
    assert steps < len(prompts)  # several texts in one step
    for prompt, vector in zip(prompts, found, strict=True):
        expected = hidden_states(model, prompt).mean(0)
        assert np.abs(vector - expected).max() < BOUNDS[dtype] * np.abs(expected).max(), len(prompt)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classes_are_those_of_transformers(encoders, kernel_cache: Path, family: str) -> None:
    directory, prompts = encoders(family, "float32"), texts((2, 17, 64, 130))
    model = oracle(directory)
    for prompt, vector in zip(prompts, embedded(directory, kernel_cache, prompts)[0], strict=True):
        with torch.no_grad():
            expected = model(torch.tensor(prompt[None].astype(np.int64))).logits[0].numpy()
        assert vector.shape == expected.shape
        assert np.abs(vector - expected).max() < 2e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("family", ENCODERS)
def test_the_same_bits_alone_and_in_company(encoders, kernel_cache: Path, family: str) -> None:
    directory, prompts = encoders(family, "bfloat16"), texts()
    alone, _ = embedded(directory, kernel_cache, prompts, max_num_seqs=1)
    packed, _ = embedded(directory, kernel_cache, prompts[::-1], max_num_seqs=16, max_num_batched_tokens=400)
    assert [v.tobytes() for v in alone] == [v.tobytes() for v in packed[::-1]]


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ({"pooling_mode_cls_token": True}, lambda rows: rows[0]),
        ({"pooling_mode": "lasttoken"}, lambda rows: rows[-1]),
        ({"pooling_mode": "max"}, lambda rows: rows.max(0)),
    ],
    ids=["cls", "last", "max"],
)
def test_pooling_of_sentence_transformers(tmp_path: Path, kernel_cache: Path, pooling, pool) -> None:
    directory = make_encoder("bert", "float32", tmp_path, pooling)
    model, prompts = oracle(directory), texts((1, 5, 33))
    for prompt, vector in zip(prompts, embedded(directory, kernel_cache, prompts)[0], strict=True):
        expected = pool(hidden_states(model, prompt))
        assert np.abs(vector - expected).max() < BOUNDS["float32"] * np.abs(expected).max()


def test_the_second_text_has_a_type_of_its_own(encoders, kernel_cache: Path) -> None:
    directory, (prompt,), second = encoders("bert", "float32"), texts((33,)), 20
    types = (np.arange(len(prompt)) >= second).astype(np.int64)
    with torch.no_grad():
        given = {"input_ids": prompt.astype(np.int64), "token_type_ids": types}
        states = oracle(directory)(**{name: torch.tensor(ids[None]) for name, ids in given.items()})
    expected = states.last_hidden_state[0].numpy().mean(0)
    (vector,), _ = embedded(directory, kernel_cache, [prompt], second_text=second)
    assert np.abs(vector - expected).max() < BOUNDS["float32"] * np.abs(expected).max()
    (plain,), _ = embedded(directory, kernel_cache, [prompt])
    assert np.abs(vector - plain).max() > 0.01


def test_a_step_holds_the_longest_text(encoders, kernel_cache: Path) -> None:
    directory = encoders("bert", "bfloat16")
    assert load_limits(directory, kernel_cache).max_num_batched_tokens >= MAX_LEN
    with pytest.raises(UsageError, match=r"reads a text in one step.*raise it, or lower --max-model-len"):
        load_limits(directory, kernel_cache, max_num_batched_tokens=MAX_LEN - 1, max_num_seqs=4)
    load_limits(directory, kernel_cache, max_num_batched_tokens=64, max_num_seqs=4, max_model_len=64)


def test_several_ranks_are_refused(encoders, kernel_cache: Path) -> None:
    with pytest.raises(UsageError, match="tensor-parallel-size 2: an encoder is computed by one rank"):
        load_limits(encoders("bert", "bfloat16"), kernel_cache, tensor_parallel_size=2)


def load_limits(directory: Path, cache_dir: Path, **sizes: int) -> Any:
    executor = load_executor(config_of(directory, cache_dir, **sizes), lambda *_: None)
    executor.release()
    return executor.limits


def test_texts_that_are_too_long_are_refused(encoders, kernel_cache: Path) -> None:
    executor, channel = (
        load_executor(config_of(encoders("bert", "bfloat16"), kernel_cache), lambda *_: None),
        Kept(),
    )
    core = EngineCore(executor, channel)
    (long,) = texts((MAX_LEN + 1,))
    core.submit(NewRequest(id=1, prompt=long.tobytes(), sampling=Sampling(), pooling="mean"))
    core.submit(NewRequest(id=2, prompt=long[:9].tobytes(), sampling=Sampling(max_tokens=3)))
    core.submit(
        NewRequest(id=3, prompt=long[:9].tobytes(), sampling=Sampling(), pooling="last", second_text=10)
    )
    executor.release()
    assert f"{MAX_LEN + 1} tokens" in channel.rejected[1]
    assert "is an encoder" in channel.rejected[2]
    assert "second_text is 10" in channel.rejected[3]
