"""What one step is going to compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Positions start .. start + length - 1 of a sequence.

    Of these, `num_scores` positions from `first_score` on get a SCORE row, and the last one a SAMPLE row
    where `samples`. admitted: the chunk is the first one since the sequence got its slot, whose row must be
    written before.
    """

    sequence: Sequence
    slot: int
    start: int
    length: int
    first_score: int
    num_scores: int
    samples: bool
    admitted: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. The decodes come first, one token and one SAMPLE row each; then the prefill chunks.

    decode_slots: int64 [decodes]; decode_positions: int32 [decodes]. new_blocks: (slot, index in its table,
    block) for each sequence whose next token needs one. free_tokens, free_crowd_tokens, free_rows: what
    `Scheduler.extend` may still fill; of the tokens, how many the crowd may take. is_charged: its tokens are
    counted in the accounts of their tenants.
    """

    step: int
    decode_slots: NDArray[np.int64]
    decode_positions: NDArray[np.int32]
    new_blocks: tuple[tuple[int, int, int], ...]
    chunks: tuple[PrefillChunk, ...]
    free_tokens: int
    free_crowd_tokens: int
    free_rows: int
    is_charged: bool

    @property
    def is_empty(self) -> bool:
        return not self.chunks and not len(self.decode_slots)
