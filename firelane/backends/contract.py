"""The one interface between the engine and every backend: arrays in, arrays out, one native call per step.

Per-sequence state lies in `SlotState`, owned by the executor and written by the engine: one row ("slot") per
running sequence. The backend itself reads each token's id from `tokens[slot, position]` and writes each
sampled token to `tokens[slot, position + 1]`; so the next step can be submitted before the host has looked at
the last one's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

MAX_LOGPROBS = 20
MAX_BIAS = 300
MAX_STOP_IDS = 16
SAMPLE, SCORE, EMBED = 0, 1, 2

SAMPLING_DTYPE = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("top_k", np.int32),
        ("logprobs", np.int32),  # -1: none; n: the chosen token and n alternatives
        ("seed", np.uint64),
        ("prompt_len", np.int32),  # tokens before this position are the prompt
        ("stop_from", np.int32),  # positions below this one may not draw any of stop_ids (min_tokens)
        ("num_stop_ids", np.int32),
        ("num_bias", np.int32),
        ("masked", np.int32),  # 1: only what the slot's mask allows may be drawn
    ],
    align=True,
)


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """Sizes fixed when the executor is made. Blocks 0 .. num_blocks - 1 hold block_size tokens each."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_output_rows: int
    max_model_len: int
    block_size: int
    num_blocks: int

    @property
    def blocks_per_seq(self) -> int:
        return -(-self.max_model_len // self.block_size)


@dataclass(frozen=True, kw_only=True)
class SlotState:
    """Per-slot state. A slot may be rewritten only while no step in flight has a chunk of it.

    tokens:       int32 [max_num_seqs, max_model_len + 1]      prompt, then output
    block_tables: int32 [max_num_seqs, blocks_per_seq]         block ids; not read past the sequence's blocks
    sampling:     SAMPLING_DTYPE [max_num_seqs]
    bias_ids:     int32 [max_num_seqs, MAX_BIAS]; bias_values: float32, the same shape
    stop_ids:     int32 [max_num_seqs, MAX_STOP_IDS]
    masks:        uint32 [max_num_seqs, vocab_size // 32 + 1]  bit t % 32 of word t // 32: token t may be
                  drawn; bits from vocab_size on mean nothing (there is always one, for the engine's use)
    """

    tokens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    sampling: NDArray[Any]
    bias_ids: NDArray[np.int32]
    bias_values: NDArray[np.float32]
    stop_ids: NDArray[np.int32]
    masks: NDArray[np.uint32]

    @classmethod
    def allocate(cls, limits: StepLimits, vocab_size: int) -> SlotState:
        slots = limits.max_num_seqs
        return cls(
            tokens=np.zeros((slots, limits.max_model_len + 1), np.int32),
            block_tables=np.zeros((slots, limits.blocks_per_seq), np.int32),
            sampling=np.zeros(slots, SAMPLING_DTYPE),
            bias_ids=np.zeros((slots, MAX_BIAS), np.int32),
            bias_values=np.zeros((slots, MAX_BIAS), np.float32),
            stop_ids=np.zeros((slots, MAX_STOP_IDS), np.int32),
            masks=np.zeros((slots, vocab_size // 32 + 1), np.uint32),
        )


@dataclass(kw_only=True)
class StepInputs:
    """What one step computes. Filled in place by the engine; not touched from submit() until wait() returns.

    Chunk i runs positions chunk_start[i] .. + chunk_len[i] - 1 of slot chunk_slot[i]; a slot is in at most
    one chunk. The chunks' tokens, in order, are the step's token rows. Output row r looks at token row
    row_token[r] of slot row_slot[r], whose position is row_position[r]: kind SAMPLE draws the token of
    position row_position[r] + 1 and writes it to `tokens`, kind SCORE gives the log-probability of the token
    that stands there already, kind EMBED gives the hidden state and neither draws nor writes. Logits are
    not computed for EMBED rows behind the last row of another kind.
    Arrays: int32 [max_num_seqs] for chunk_*, int32 [max_output_rows] for row_*.
    """

    num_chunks: int
    num_tokens: int
    num_rows: int
    chunk_slot: NDArray[np.int32]
    chunk_start: NDArray[np.int32]
    chunk_len: NDArray[np.int32]
    row_token: NDArray[np.int32]
    row_slot: NDArray[np.int32]
    row_position: NDArray[np.int32]
    row_kind: NDArray[np.int32]

    @classmethod
    def allocate(cls, limits: StepLimits) -> StepInputs:
        chunks = [np.zeros(limits.max_num_seqs, np.int32) for _ in range(3)]
        rows = [np.zeros(limits.max_output_rows, np.int32) for _ in range(4)]
        return cls(
            num_chunks=0,
            num_tokens=0,
            num_rows=0,
            chunk_slot=chunks[0],
            chunk_start=chunks[1],
            chunk_len=chunks[2],
            row_token=rows[0],
            row_slot=rows[1],
            row_position=rows[2],
            row_kind=rows[3],
        )


@dataclass(frozen=True, kw_only=True)
class StepOutputs:
    """Results by output row; valid until the second next wait() (two buffers take turns).

    tokens: int32 [rows]; logprobs: float32 [rows] of `tokens`, raw distribution, where the slot asked;
    top_ids: int32 [rows, MAX_LOGPROBS], best first, -1 where the vocabulary has no more; top_logprobs:
    float32, the same shape. hidden: float32 [rows, hidden_width] of EMBED rows: the input of the product that
    makes the logits, after the model's last norm. What a kind does not give is undefined in its rows.
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    hidden: NDArray[np.float32]

    @classmethod
    def allocate(cls, limits: StepLimits, hidden_width: int) -> StepOutputs:
        rows = limits.max_output_rows
        return cls(
            tokens=np.zeros(rows, np.int32),
            logprobs=np.zeros(rows, np.float32),
            top_ids=np.zeros((rows, MAX_LOGPROBS), np.int32),
            top_logprobs=np.zeros((rows, MAX_LOGPROBS), np.float32),
            hidden=np.zeros((rows, hidden_width), np.float32),
        )


class Executor(Protocol):
    """Runs steps. At most one step is in flight: submit() and wait() alternate."""

    @property
    def limits(self) -> StepLimits: ...

    @property
    def state(self) -> SlotState: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_width(self) -> int: ...

    @property
    def weights_bytes(self) -> int: ...

    @property
    def kv_bytes(self) -> int: ...

    def submit(self, inputs: StepInputs) -> None:
        """Start a step; returns at once. `inputs` and its slots are the backend's until wait() returns."""
        ...

    def wait(self) -> StepOutputs:
        """Block until the step in flight has ended (the GIL is released)."""
        ...

    def release(self) -> None:
        """Free threads and memory; idempotent."""
        ...
