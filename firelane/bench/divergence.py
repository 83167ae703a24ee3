"""Distance of the probabilities of one model from those of another on a text: KL divergence, most likely
tokens, perplexity.

Both run as they are served; hidden states behind the last norm are kept, and logits of both are made of these
a few rows at a time, so that a large vocabulary takes no more memory than a small one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from firelane.contract import EMBED, Executor, StepInputs, StepOutputs
from firelane.engine.core import EngineCore
from firelane.engine.process.load import load_executor, read_program
from firelane.engine_config import EngineConfig
from firelane.errors import MachineError, UsageError
from firelane.program.ops import Linear
from firelane.program.recipes import widened
from firelane.text.tokens.tokenizer import load_tokenizer
from firelane.text.tokens.tokenizer_source import tokenizer_directory
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.packing.pieces import read_piece
from firelane.weights.progress import Progress, silent
from firelane.weights.quantizing.schemes import WHILE_PACKING
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import NewRequest, Rejected, Sampling, StepFrame, Submit

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
WINDOW = 512
"""Tokens that are read together; the first of them is not counted."""
LOGITS_AT_ONCE = 1 << 25
SLAB_NUMBERS = 1 << 24
"""Numbers of a head that are taken at a time, in float32."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Divergence of the second model from the first, in nats; perplexities of both. top1: share of places at
    which the most likely token is the same."""

    tokens: int
    mean_kl: float
    largest_kl: float
    top1: float
    perplexities: tuple[float, float]


def divergence(
    first: EngineConfig, second: EngineConfig, text: str, *, most_tokens: int, progress: Progress = silent
) -> Divergence:
    """On the text's first tokens, by the first model's tokenizer. Raises UsageError where there are fewer
    than two, and what loading raises."""
    directory = tokenizer_directory(first.model_dir, first.cache_dir)
    ids = load_tokenizer(directory).encode(text)[:most_tokens]
    if len(ids) < 2:
        raise UsageError("the text to evaluate has fewer than two tokens: give a longer one")
    window = min(WINDOW, read_program(first).max_model_len - 1)
    windows = [ids[at : at + window] for at in range(0, len(ids), window)]
    windows = [part for part in windows if len(part) > 1]
    following = np.concatenate([part[1:] for part in windows])
    return _compare(_Model(first, windows, progress), _Model(second, windows, progress), following)


class _Model:
    """Hidden states of all counted places [places, width], and the head that makes logits of them."""

    def __init__(self, config: EngineConfig, windows: Sequence[Sequence[int]], progress: Progress) -> None:
        checkpoint = Checkpoint.open(config.model_dir)
        scheme = WHILE_PACKING.get(config.weights)
        program = fitted(read_program(config), checkpoint, rounds=config.rounds, quantize=scheme)
        if program.head is None:
            raise UsageError(f"{config.model_dir}: has no head, and so no probabilities of tokens")
        self.head: Linear = program.head
        self._checkpoint = checkpoint
        executor = load_executor(config, progress)
        try:
            found = [hidden_states(executor, window)[:-1] for window in windows]
        finally:
            executor.release()
        self.hidden = np.concatenate(found)

    def logits(self, first: int, last: int) -> F32:
        """Logits of places first .. last - 1: [places, vocabulary]."""
        hidden, weight, head = self.hidden[first:last], self.head.weight, self.head
        step = max(1, SLAB_NUMBERS // weight.k)
        slabs = (range(at, min(at + step, weight.rows)) for at in range(0, weight.rows, step))
        out = np.concatenate([hidden @ self._rows(slab).T for slab in slabs], axis=1)
        out *= np.float32(head.scale)
        if head.softcap:
            out = np.tanh(out / np.float32(head.softcap)) * np.float32(head.softcap)
        return out

    def _rows(self, rows: range) -> F32:
        spans = self.head.weight.spans(rows.start, rows.stop)
        return np.concatenate(
            [widened(read_piece(self._checkpoint, piece, within)) for piece, within in spans]
        )


def _compare(first: _Model, second: _Model, following: NDArray[Any]) -> Divergence:
    places = len(following)
    step = max(1, LOGITS_AT_ONCE // first.head.weight.rows)
    kl, same, lost = np.zeros(places), np.zeros(places, bool), np.zeros((2, places))
    for at in range(0, places, step):
        here = slice(at, min(at + step, places))
        p, q = (_log_softmax(model.logits(at, here.stop)) for model in (first, second))
        kl[here] = np.einsum("ij,ij->i", np.exp(p), p - q)
        same[here] = p.argmax(axis=1) == q.argmax(axis=1)
        for number, model in enumerate((p, q)):
            lost[number, here] = -model[np.arange(len(model)), following[here]]
    return Divergence(
        tokens=places,
        mean_kl=float(kl.mean()),
        largest_kl=float(kl.max()),
        top1=float(same.mean()),
        perplexities=(exp(lost[0].mean()), exp(lost[1].mean())),
    )


def _log_softmax(logits: F32) -> F64:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def hidden_states(executor: Executor, tokens: Sequence[int]) -> F32:
    """Hidden states of each position of a prompt: [tokens, width]."""
    recorder = _Recorder(executor)
    channel = _OneRequest(np.asarray(tokens, "<i4"))
    core = EngineCore(cast(Executor, recorder), channel, prefix_cache=False)
    while not (channel.is_finished and core.is_idle):
        core.step()
    if channel.refused:
        raise MachineError(f"the engine refused a text of {len(tokens)} tokens: {channel.refused}")
    return np.stack([recorder.states[position] for position in range(len(tokens))])


class _Recorder:
    """An executor that keeps the hidden states of the steps of another one, by position."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._rows: deque[Iterator[tuple[int, int]]] = deque()
        self.states: dict[int, F32] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def submit(self, inputs: StepInputs) -> None:
        wanted = np.flatnonzero(inputs.row_kind[: inputs.num_rows] == EMBED)
        self._rows.append(zip(wanted.tolist(), inputs.row_position[wanted].tolist(), strict=True))
        self._executor.submit(inputs)

    def wait(self) -> StepOutputs:
        outputs = self._executor.wait()
        for row, position in self._rows.popleft():
            self.states[position] = outputs.hidden[row].copy()
        return outputs


class _OneRequest:
    """A channel that submits one prompt, of which the hidden states are wanted."""

    def __init__(self, tokens: NDArray[np.int32]) -> None:
        request = NewRequest(id=1, prompt=tokens.tobytes(), sampling=Sampling(), pooling="mean")
        self._waiting: list[Submit] = [Submit([request])]
        self.is_finished = False
        self.refused = ""

    def receive(self, wait_s: float | None) -> list[Submit]:
        del wait_s
        waiting, self._waiting = self._waiting, []
        return waiting

    def send(self, frame: StepFrame | Rejected | PageChanges) -> None:
        assert not isinstance(frame, PageChanges), "nobody has asked for pages"
        if isinstance(frame, Rejected):
            self.refused, self.is_finished = frame.message, True
        elif frame.finished:
            self.is_finished = True
