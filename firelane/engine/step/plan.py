"""The plan of one step: a value, applied when the step is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.contract import NO_SNAPSHOT
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.sequences.spares import DecodeStates
from firelane.engine.step.drafts import Drafts
from firelane.kv import PrefixHit, StateSave


class Admission(NamedTuple):
    """A waiting sequence that gets a slot, and its cached prefix. snapshots_at: lengths at which its prefill
    leaves a snapshot of the recurrent state."""

    sequence: Sequence
    slot: int
    hit: PrefixHit
    snapshots_at: tuple[int, ...] = ()


class PrefillChunk(NamedTuple):
    """Positions start .. start + length - 1 of a sequence.

    Of these, `num_scores` positions from `first_score` on get a SCORE row, and the last one a SAMPLE row
    where `samples`. writes_row: the chunk is the first one since the sequence got its slot, whose row must be
    written before. is_last: it ends the prompt. snapshot: the one of the recurrent state that it begins with;
    without, it goes on from the slot's own state.
    """

    sequence: Sequence
    slot: int
    start: int
    length: int
    first_score: int
    num_scores: int
    samples: bool
    writes_row: bool
    is_last: bool
    snapshot: int = NO_SNAPSHOT


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. The decodes come first, with one SAMPLE row for each of their tokens: one, and those drafted
    for it; then the prefill chunks.

    decode_slots: int64 [decodes]; decode_positions: int32 [decodes]. growth: int64,
    slots of decodes that need one more block in every group. saves: snapshots of recurrent states that the
    step writes, at most one a slot, at the end of its chunk. changes: SequenceTable.changes when it was
    planned. drafts: None where no decode has any. states: the recurrent states that the decodes begin from;
    None: each from its slot's own.
    """

    step: int
    decode_slots: NDArray[np.int64]
    decode_positions: NDArray[np.int32]
    growth: NDArray[np.int64]
    chunks: tuple[PrefillChunk, ...]
    admissions: tuple[Admission, ...]
    preempted: tuple[Sequence, ...]
    saves: tuple[StateSave, ...]
    changes: int
    drafts: Drafts | None = None
    states: DecodeStates | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing is computed; sequences may have been preempted for what is computed later."""
        return not self.chunks and not len(self.decode_slots)
