"""The arrays of one step: its inputs, filled in place by the engine, and its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.contract.limits import StepLimits
from firelane.request_limits import MAX_LOGPROBS

ZERO_STATE = -1
"""In chunk_from: zeros, the state before the first token of a sequence."""
NO_SNAPSHOT = -1
"""In chunk_save: the state is written to no snapshot."""


@dataclass(kw_only=True)
class StepInputs:
    """Inputs of one step. Filled in place by the engine; not touched from submit() until wait() returns.

    Chunk i runs positions chunk_start[i] .. + chunk_len[i] - 1 of slot chunk_slot[i]; a slot is in at most
    one chunk. The chunks' tokens, in order, are the step's token rows. Output row r looks at token row
    row_token[r] of slot row_slot[r], whose position is row_position[r]: kind SAMPLE draws the token of
    position row_position[r] + 1 and writes it to `tokens`, kind SCORE gives the log-probability of the token
    that stands there already, kind EMBED gives the hidden state and neither draws nor writes. Logits are
    not computed for EMBED rows behind the last row of another kind. A slot may have SAMPLE rows at several
    positions of its chunk, whose tokens from the second on are a draft: what a row draws then follows from
    the tokens that stood there when the step began. A SAMPLE row of a masked slot draws what a row
    of `masks` allows: the slot's own where row_mask[r] is 0, else row max_num_seqs + row_mask[r] - 1.

    Recurrent state: chunk i starts from state chunk_from[i] (ZERO_STATE: from zeros, at a sequence's first
    token; the slot itself: it goes on; else a snapshot or a spare, which is read). The last chunk_drafted[i]
    of its tokens are a draft, never all of them. The state after the tokens before these is written to the
    slot's live state and, unless chunk_save[i] is NO_SNAPSHOT, to state chunk_save[i], a snapshot. Where
    there is a draft, the state after the chunk's last token is written to state chunk_spare[i], a spare; the
    chunk may start from the same one. No chunk of a step writes a state that another one reads or writes.
    Programs without recurrent state ignore these four arrays.

    features: float32 [max_num_batched_tokens, features_in], what a program that reads features gets for each
    token row of the step; [.., 0] of one that reads none. Rows behind num_tokens mean nothing.
    Other arrays: int32 [max_num_seqs] for chunk_*, int32 [max_output_rows] for row_*.
    """

    num_chunks: int
    num_tokens: int
    num_rows: int
    chunk_slot: NDArray[np.int32]
    chunk_start: NDArray[np.int32]
    chunk_len: NDArray[np.int32]
    chunk_from: NDArray[np.int32]
    chunk_save: NDArray[np.int32]
    chunk_drafted: NDArray[np.int32]
    chunk_spare: NDArray[np.int32]
    row_token: NDArray[np.int32]
    row_slot: NDArray[np.int32]
    row_position: NDArray[np.int32]
    row_kind: NDArray[np.int32]
    row_mask: NDArray[np.int32]
    features: NDArray[np.float32]

    @classmethod
    def allocate(cls, limits: StepLimits, features_in: int = 0) -> StepInputs:
        """features_in: Executor.features_in of the executor that the inputs are for."""
        chunks = [np.zeros(limits.max_num_seqs, np.int32) for _ in range(5)]
        rows = [np.zeros(limits.max_output_rows, np.int32) for _ in range(5)]
        return cls(
            num_chunks=0,
            num_tokens=0,
            num_rows=0,
            chunk_slot=chunks[0],
            chunk_start=chunks[1],
            chunk_len=chunks[2],
            chunk_from=np.full(limits.max_num_seqs, ZERO_STATE, np.int32),
            chunk_save=np.full(limits.max_num_seqs, NO_SNAPSHOT, np.int32),
            chunk_drafted=chunks[3],
            chunk_spare=chunks[4],
            row_token=rows[0],
            row_slot=rows[1],
            row_position=rows[2],
            row_kind=rows[3],
            row_mask=rows[4],
            features=np.zeros((limits.max_num_batched_tokens, features_in), np.float32),
        )


@dataclass(frozen=True, kw_only=True)
class StepOutputs:
    """Results by output row, features by token row; valid until the submit() that follows the next wait().

    Executors own max_in_flight + 1 of them, which take turns.

    tokens: int32 [rows]; logprobs: float32 [rows] of `tokens`, raw distribution, where the slot asked;
    top_ids: int32 [rows, MAX_LOGPROBS], best first, -1 where the vocabulary has no more, or the tokens that
    the slot names, in its order; top_logprobs: float32, the same shape.
    hidden: float32 [rows, hidden_width] of EMBED rows: the input of the product that
    makes the logits, after the model's last norm. What a kind does not give is undefined in its rows.
    features: float32 [max_num_batched_tokens, features_out], by token row: what the program tells of each
    token of the step; [.., 0] of one that tells nothing. Numbers of bf16 values are those values.
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    hidden: NDArray[np.float32]
    features: NDArray[np.float32]

    @classmethod
    def allocate(cls, limits: StepLimits, hidden_width: int, features_out: int = 0) -> StepOutputs:
        rows = limits.max_output_rows
        return cls(
            tokens=np.zeros(rows, np.int32),
            logprobs=np.zeros(rows, np.float32),
            top_ids=np.zeros((rows, MAX_LOGPROBS), np.int32),
            top_logprobs=np.zeros((rows, MAX_LOGPROBS), np.float32),
            hidden=np.zeros((rows, hidden_width), np.float32),
            features=np.zeros((limits.max_num_batched_tokens, features_out), np.float32),
        )


def mask_row(inputs: StepInputs, row: int, max_num_seqs: int) -> int:
    """The row of SlotState.masks that output row `row` reads."""
    after_draft = int(inputs.row_mask[row])
    return max_num_seqs + after_draft - 1 if after_draft else int(inputs.row_slot[row])
