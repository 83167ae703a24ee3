"""Families on the CPU backend through the engine, against transformers on the same weights: greedy tokens and
top-5 log-probabilities; prompts from one token to past the window, all at once, in chunks, with a shared
prefix.

Compiled are those families that together have each op with all its options, and each recipe of a weight, that
any family has; that every family's program says what its model does is tested in models/test_exactness.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from firelane.contract import Executor
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor
from firelane.engine_config import EngineConfig
from firelane.kv.states import SnapshotRule
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, TokenLogprobs
from tests.engine.driver import Driver
from tests.engine.handed_over import HandedOver, handed_over
from tests.engine.oracle import Recall
from tests.models.covering import covering, options_and_recipes_of
from tests.models.families import make_checkpoint
from tests.models.oracle import load_oracle
from tests.models.toy_config import VOCAB_SIZE, WINDOW

NEW_TOKENS = 8
SNAPSHOTS = SnapshotRule(interval=64, at_least=16)
LENGTHS = (1, 2, 7, 16, 31, WINDOW - 1, WINDOW, WINDOW + 30)
# Largest error of a log-probability. float32: the order of sums. bf16: about eight roundings of 2^-9 a
# layer; measured up to half of this. A token may differ from the oracle's only where the oracle's own
# margin is below twice the bound.
BOUNDS = {"float32": 2e-4, "bfloat16": 0.2}


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    reason: str = ""
    cached: int = 0


class Collector:
    """A channel that keeps what each request was told."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}

    def receive(self, wait_s: float | None) -> tuple[()]:  # noqa: ARG002
        return ()

    def send(self, frame: StepFrame | Rejected) -> None:
        assert isinstance(frame, StepFrame), frame
        for started in frame.started:
            self.answers.setdefault(started.id, Answer()).cached = started.cached_tokens
        for i, token, _ in frame.each_token():
            self.answers[i].tokens.append(token)
        for entry in frame.logprobs:
            self.answers[entry.id].logprobs.append(entry)
        for finished in frame.finished:
            self.answers[finished.id].reason = finished.reason


def prompts() -> list[NDArray[np.int32]]:
    """Random ones, and two that begin like the longest."""
    found = [np.random.default_rng(n).integers(0, VOCAB_SIZE, n, np.int32) for n in LENGTHS]
    tail = np.random.default_rng(99).integers(0, VOCAB_SIZE, 9, np.int32)
    return [*found, np.concatenate([found[-1][:48], tail]), found[-1].copy()]


def waves() -> list[list[NewRequest]]:
    """Return the requests in two waves; the last two prompts begin like one of the others."""
    sampling = Sampling(temperature=0.0, max_tokens=NEW_TOKENS, logprobs=5)
    sent = [NewRequest(id=i, prompt=p.tobytes(), sampling=sampling) for i, p in enumerate(prompts())]
    return [sent[:-2], sent[-2:]]


def load(directory: Path, cache_dir: Path, **sizes: Any) -> Executor:
    config = EngineConfig(
        model_dir=directory, backend="cpu", threads=2, kv_cache_bytes=8 << 20, cache_dir=cache_dir, **sizes
    )
    return load_executor(config, lambda *_: None)


def run(directory: Path, cache_dir: Path, **sizes: int) -> dict[int, Answer]:
    """All prompts: half of them at once, the others once those have ended (so that prefixes are in the
    cache)."""
    executor = load(directory, cache_dir, **sizes)
    channel = Collector()
    core = EngineCore(executor, channel, snapshots=SNAPSHOTS)
    for wave in waves():
        for request in wave:
            core.submit(request)
        while not core.is_idle:
            core.step()
            core.check_integrity()
    executor.release()
    return channel.answers


def run_handed_over(directory: Path, cache_dir: Path, answers: dict[int, Answer], **sizes: int) -> HandedOver:
    """The same from two engines, one that prefills and one that decodes, in chunks of other sizes, and with
    drafts."""
    chunks = sizes.pop("max_num_batched_tokens")
    executors = [
        load(directory, cache_dir, max_num_batched_tokens=n, speculative=kind, **sizes)
        for n, kind in ((chunks, "off"), (2 * chunks, "ngram"))
    ]
    known = Recall({p.tobytes(): answers[i].tokens for i, p in enumerate(prompts())})
    drivers = [Driver(executor, snapshots=SNAPSHOTS, proposer=known) for executor in executors]
    with handed_over(*drivers) as pair:
        for wave in waves():
            pair.submit(*wave)
            pair.run()
    assert known.drafted > NEW_TOKENS
    for executor in executors:
        executor.release()
    return pair


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    base = tmp_path_factory.mktemp("families")
    return cache(lambda name, dtype: make_checkpoint(name, dtype, base / f"{name}-{dtype}"))


def run_oracle(model: torch.nn.Module, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Log-probabilities after each token, from transformers in float32."""
    with torch.no_grad():
        logits = model(torch.tensor(tokens[None].astype(np.int64))).logits[0]
    return torch.log_softmax(logits, -1).numpy()


def check(answer: Answer, prompt: NDArray[np.int32], expected: NDArray[np.float32], bound: float) -> int:
    """Compare an answer, token by token, with the oracle run on the answer itself; returns tokens that
    differ."""
    assert len(answer.tokens) == NEW_TOKENS
    assert answer.reason == "length"
    differing = 0
    for i, (token, entry) in enumerate(zip(answer.tokens, answer.logprobs, strict=True)):
        truth = expected[len(prompt) - 1 + i]
        best = np.sort(truth)[-2:]
        if token != truth.argmax():
            assert best[1] - best[0] < 2 * bound, (
                f"token {i}: {token}, oracle {truth.argmax()} by {best[1] - best[0]:.3f}"
            )
            differing += 1
        assert entry.position == len(prompt) + i
        assert abs(entry.logprob - truth[token]) < bound
        assert np.abs(np.array(entry.top_logprobs) - truth[entry.top_ids]).max() < bound
        assert np.abs(np.array(entry.top_logprobs) - np.sort(truth)[::-1][:5]).max() < bound
    return differing


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, "float32") for family in covering(options_of=options_and_recipes_of)),
        *((name, "bfloat16") for name in ("llama3", "qwen2_moe")),
    ],
)
def test_engine_against_transformers(checkpoints, kernel_cache: Path, family: str, dtype: str) -> None:
    directory = checkpoints(family, dtype)
    sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 48, "block_size": 16}
    answers = run(directory, kernel_cache, **sizes)
    assert answers[len(LENGTHS)].cached == 48  # the shared prefix, in whole blocks
    differing, model = 0, load_oracle(directory)
    for i, prompt in enumerate(prompts()):
        tokens = np.concatenate([prompt, np.array(answers[i].tokens, np.int32)])
        differing += check(answers[i], prompt, run_oracle(model, tokens), BOUNDS[dtype])
    assert differing <= (0 if dtype == "float32" else 4)
    assert answers[len(LENGTHS) - 1].tokens == answers[len(LENGTHS) + 1].tokens
    check_handed_over(answers, run_handed_over(directory, kernel_cache, answers, **sizes))


def check_handed_over(answers: dict[int, Answer], pair: HandedOver) -> None:
    """The same bits from a prefill and a decode engine."""
    assert pair.handed_over == len(answers)
    assert pair.tokens == {i: answer.tokens for i, answer in answers.items()}
    assert pair.logprobs == {i: answer.logprobs for i, answer in answers.items()}
    assert pair.cached == {i: answer.cached for i, answer in answers.items()}
