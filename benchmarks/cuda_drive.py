"""Steps without a scheduler: sequences of random tokens, greedy, each in blocks of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firelane.contract import SAMPLE, Executor, SlotState, StepInputs, StepLimits
from firelane.program.values import StepShape

FIRST_PLAIN_ID = 10
Chunk = tuple[int, int, int]
"""slot, first position, tokens"""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The times of one step, in seconds. turn: from submit() to the end of wait(); submit, wait: of these
    calls."""

    turn: float
    submit: float
    wait: float


def limits_for(
    *, sequences: int, longest: int, step_tokens: int, kept_tokens: int | None = None, block_size: int = 64
) -> StepLimits:
    """Room for `kept_tokens` of each sequence (default: `longest`) at the same time, and for one of
    `longest`."""
    each = -(-(kept_tokens or longest) // block_size)
    return StepLimits(
        max_num_seqs=sequences,
        max_num_batched_tokens=step_tokens,
        max_output_rows=min(sequences, step_tokens),
        max_model_len=longest,
        block_size=block_size,
        num_blocks=max(sequences * each, -(-longest // block_size)),
    )


def fill_slots(state: SlotState, limits: StepLimits, vocab_size: int) -> None:
    """Random tokens, greedy. The sequences share the blocks evenly; one that grows beyond its share writes
    over those of others."""
    for name, value in {"top_p": 1, "repetition_penalty": 1, "logprobs": -1}.items():
        state.sampling[name] = value
    low = min(FIRST_PLAIN_ID, vocab_size - 1)
    state.tokens[:] = np.random.default_rng(0).integers(low, vocab_size, state.tokens.shape)
    first = np.arange(limits.max_num_seqs)[:, None] * (limits.num_blocks // limits.max_num_seqs)
    state.block_tables[:] = (first + np.arange(limits.blocks_per_seq)) % limits.num_blocks


def write_chunks(inputs: StepInputs, chunks: Sequence[Chunk]) -> None:
    """A step of these chunks; each one's last token is sampled."""
    slot, start, length = (np.array(column, np.int32) for column in zip(*chunks, strict=True))
    n = len(chunks)
    inputs.num_chunks = inputs.num_rows = n
    inputs.num_tokens = int(length.sum())
    inputs.chunk_slot[:n], inputs.chunk_start[:n], inputs.chunk_len[:n] = slot, start, length
    inputs.row_token[:n], inputs.row_slot[:n] = np.cumsum(length) - 1, slot
    inputs.row_position[:n], inputs.row_kind[:n] = start + length - 1, SAMPLE


def shape_of(chunks: Sequence[Chunk]) -> StepShape:
    return StepShape(
        tokens=sum(length for _, _, length in chunks),
        outputs=len(chunks),
        attended=sum(length * start + length * (length + 1) // 2 for _, start, length in chunks),
        context=sum(start + length for _, start, length in chunks),
        sequences=len(chunks),
    )


def decoding(sequences: int, context: int) -> list[Chunk]:
    """One token each, at position `context`."""
    return [(slot, context, 1) for slot in range(sequences)]


class Driver:
    """Runs steps on an executor, which it does not own."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._inputs = StepInputs.allocate(executor.limits)
        fill_slots(executor.state, executor.limits, executor.vocab_size)

    def step(self, chunks: Sequence[Chunk]) -> tuple[list[int], StepTimes]:
        """The tokens that were drawn, and how long it took."""
        write_chunks(self._inputs, chunks)
        began_s = time.perf_counter()
        self.executor.submit(self._inputs)
        submitted_s = time.perf_counter()
        outputs = self.executor.wait()
        ended_s = time.perf_counter()
        times = StepTimes(turn=ended_s - began_s, submit=submitted_s - began_s, wait=ended_s - submitted_s)
        return outputs.tokens[: len(chunks)].tolist(), times

    def decode(self, sequences: int, context: int, steps: int) -> tuple[list[list[int]], list[StepTimes]]:
        """One after the other, each a position further: the tokens of each step, and its times. The first is
        not counted."""
        done = [self.step(decoding(sequences, context + i)) for i in range(steps + 1)][1:]
        return [tokens for tokens, _ in done], [times for _, times in done]

    def prefill(self, slot: int, tokens: int, step_tokens: int) -> float:
        """Seconds for a prompt, cut into steps."""
        seconds = 0.0
        for start in range(0, tokens, step_tokens):
            chunk = (slot, start, min(step_tokens, tokens - start))
            seconds += self.step([chunk])[1].turn
        return seconds
