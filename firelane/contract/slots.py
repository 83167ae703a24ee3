"""Per-sequence state shared by the engine and a backend: one row ("slot") per running sequence.

Owned by the executor, written by the engine; shareable with ranks that are processes of their own. The
backend itself reads each token's id from `tokens[slot, position]` and writes each sampled token to
`tokens[slot, position + 1]`; so the next step can be submitted before the host has looked at the last one's
tokens.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.contract.limits import StepLimits
from firelane.errors import OutOfMemoryError
from firelane.request_limits import MAX_BIAS, MAX_STOP_IDS

ALIGNMENT = 64
DRAFT_MASKS = 64
"""Rows of masks beside one for each slot."""
_Array = tuple[str, tuple[int, ...], np.dtype[Any], int]
"""Field of SlotState, shape, dtype, and offset in bytes."""

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
        ("second_text", np.int32),  # of a pair of texts: the position that the second begins at; 0: one text
        ("num_reported", np.int32),  # alternatives are the first n of bias_ids; 0: the best
    ],
    align=True,
)


@dataclass(frozen=True, kw_only=True)
class SlotState:
    """Per-slot state. A slot may be rewritten only while no step in flight has a chunk of it.

    tokens:       int32 [max_num_seqs, max_model_len + 1]      prompt, then output
    block_tables: int32 [groups, max_num_seqs, blocks_per_seq] page ids of each cache group; not read past the
                  sequence's pages, nor before the tile of the span's first position (span.kept_from)
    sampling:     SAMPLING_DTYPE [max_num_seqs]
    bias_ids:     int32 [max_num_seqs, MAX_BIAS]; bias_values: float32, the same shape
    stop_ids:     int32 [max_num_seqs, MAX_STOP_IDS]
    masks:        uint32 [max_num_seqs + DRAFT_MASKS, vocab_size // 32 + 1]  bit t % 32 of word t // 32:
                  token t may be drawn; bits from vocab_size on mean nothing (there is always one, for the
                  engine's use); a row for each slot, then rows for what follows drafted tokens
    adapter:      int32 [max_num_seqs]                         place in Executor.adapters, or NO_ADAPTER; read
                  only where there are such
    """

    tokens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    sampling: NDArray[Any]
    bias_ids: NDArray[np.int32]
    bias_values: NDArray[np.float32]
    stop_ids: NDArray[np.int32]
    masks: NDArray[np.uint32]
    adapter: NDArray[np.int32]

    @classmethod
    def allocate(cls, limits: StepLimits, vocab_size: int, *, fd: int | None = None) -> SlotState:
        """State of zeros: in memory of this process, or in that of the memfd `fd` (shared_memory), which is
        made large enough and which other processes may attach to."""
        if fd is not None:
            os.ftruncate(fd, _arrays(limits, vocab_size)[1])
            return cls.attach(fd, limits, vocab_size)
        nbytes = _arrays(limits, vocab_size)[1]
        try:
            memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE)
        except (OSError, OverflowError) as error:
            raise OutOfMemoryError(
                f"unable to allocate {nbytes} bytes for {limits.max_num_seqs} sequences: lower "
                "--max-num-seqs or --max-model-len"
            ) from error
        return cls._over(memory, limits, vocab_size)

    @classmethod
    def attach(cls, fd: int, limits: StepLimits, vocab_size: int) -> SlotState:
        """The state that another process has allocated in `fd` with the same sizes: each sees the writes of
        the other. The mapping lives as long as its arrays; `fd` may be closed."""
        return cls._over(mmap.mmap(fd, _arrays(limits, vocab_size)[1]), limits, vocab_size)

    @classmethod
    def _over(cls, memory: mmap.mmap, limits: StepLimits, vocab_size: int) -> SlotState:
        arrays = {
            name: np.ndarray(shape, dtype, memory, offset)
            for name, shape, dtype, offset in _arrays(limits, vocab_size)[0]
        }
        return cls(**arrays)


def shared_memory() -> int:
    """A new memfd, to be given to SlotState.allocate and handed to other processes. The caller closes it."""
    return os.memfd_create("firelane-slots", os.MFD_CLOEXEC)


def _arrays(limits: StepLimits, vocab_size: int) -> tuple[list[_Array], int]:
    """The arrays one after the other, each at a multiple of ALIGNMENT, and the bytes of all."""
    slots = limits.max_num_seqs
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "tokens": ((slots, limits.max_model_len + 1), np.int32),
        "block_tables": ((len(limits.spans), slots, limits.blocks_per_seq), np.int32),
        "sampling": ((slots,), SAMPLING_DTYPE),
        "bias_ids": ((slots, MAX_BIAS), np.int32),
        "bias_values": ((slots, MAX_BIAS), np.float32),
        "stop_ids": ((slots, MAX_STOP_IDS), np.int32),
        "masks": ((slots + DRAFT_MASKS, vocab_size // 32 + 1), np.uint32),
        "adapter": ((slots,), np.int32),
    }
    arrays: list[_Array] = []
    end = 0
    for name, (shape, kind) in shapes.items():
        dtype = np.dtype(kind)
        arrays.append((name, shape, dtype, end))
        end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return arrays, end
