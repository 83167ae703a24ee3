"""The arrays of a step: StepInputs filled from a plan.

There is one set more than steps that may be in flight: one is filled while the others belong to steps in
flight, and are read again when these are committed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.contract import EMBED, NO_SNAPSHOT, SAMPLE, SCORE, ZERO_STATE, StepInputs, StepLimits
from firelane.engine.step.drafts import Drafts
from firelane.engine.step.image_features import ImageFeatures
from firelane.engine.step.plan import PrefillChunk, StepPlan


class InputWriter:
    """Owns the sets; they take turns."""

    def __init__(self, limits: StepLimits, max_in_flight: int, features_in: int = 0) -> None:
        """features_in: of an executor that takes images; else 0."""
        self._sets = [StepInputs.allocate(limits, features_in) for _ in range(max_in_flight + 1)]
        self._images = ImageFeatures() if features_in else None
        self._first_snapshot = limits.max_num_seqs
        self._has_states = bool(limits.state_bytes)
        self._count = np.arange(limits.max_output_rows, dtype=np.int32)

    def fill(self, plan: StepPlan) -> StepInputs:
        """The arrays of `plan`, valid until its step is committed. May run while steps are in flight."""
        inputs = self._sets[plan.step % len(self._sets)]
        decodes = len(plan.decode_slots)
        inputs.chunk_slot[:decodes] = inputs.row_slot[:decodes] = plan.decode_slots
        inputs.chunk_start[:decodes] = inputs.row_position[:decodes] = plan.decode_positions
        inputs.chunk_len[:decodes] = 1
        inputs.row_token[:decodes] = self._count[:decodes]
        inputs.row_kind[:decodes] = SAMPLE
        inputs.num_chunks = inputs.num_tokens = inputs.num_rows = decodes
        inputs.row_mask.fill(0)
        if plan.drafts is not None:
            self._add_drafts(plan, plan.drafts, inputs)
        if plan.states is not None:
            self._add_known(plan.states.behind, plan.drafts, inputs)
        # Embeddings last: rows behind all others that want logits cost none.
        for chunk in sorted(plan.chunks, key=lambda chunk: chunk.sequence.pool is not None):
            _append(inputs, chunk)
        if self._has_states:
            self._write_states(plan, inputs)
        if self._images is not None:
            self._images.write(plan, inputs)
        return inputs

    def _add_drafts(self, plan: StepPlan, drafts: Drafts, inputs: StepInputs) -> None:
        """One more row for each drafted token."""
        rows, lengths = drafts.num_rows, drafts.lengths
        inputs.chunk_len[: len(lengths)] = lengths
        inputs.row_slot[:rows] = np.repeat(plan.decode_slots, lengths)
        places = self._count[:rows] - np.repeat(drafts.first_rows, lengths)
        inputs.row_position[:rows] = np.repeat(plan.decode_positions, lengths) + places
        inputs.row_token[:rows] = self._count[:rows]
        inputs.row_kind[:rows] = SAMPLE
        inputs.row_mask[np.flatnonzero(drafts.drafted_rows()) + 1] = drafts.masks
        inputs.num_tokens = inputs.num_rows = rows

    def _add_known(self, behind: NDArray[np.int32], drafts: Drafts | None, inputs: StepInputs) -> None:
        """Tokens that are computed anew: they come first in their chunks, and have no output row."""
        decodes, rows = len(behind), inputs.num_rows
        inputs.chunk_start[:decodes] -= behind
        inputs.chunk_len[:decodes] += behind
        before = np.cumsum(behind)
        inputs.row_token[:rows] += before if drafts is None else np.repeat(before, drafts.lengths)
        inputs.num_tokens += int(behind.sum())

    def _write_states(self, plan: StepPlan, inputs: StepInputs) -> None:
        """Each chunk goes on from the live state of its slot, but for the first one of a sequence, and those
        behind a draft that was right."""
        count, decodes = inputs.num_chunks, len(plan.decode_slots)
        inputs.chunk_from[:count] = inputs.chunk_slot[:count]
        inputs.chunk_save[:count] = NO_SNAPSHOT
        inputs.chunk_drafted[:count] = 0
        if plan.states is not None:
            inputs.chunk_from[:decodes] = plan.states.begins
        if plan.drafts is not None and plan.drafts.spares is not None:
            inputs.chunk_drafted[:decodes] = plan.drafts.counts
            inputs.chunk_spare[:decodes] = plan.drafts.spares
        if not plan.chunks and not plan.saves:
            return
        index = {slot: i for i, slot in enumerate(inputs.chunk_slot[:count].tolist())}
        for chunk in plan.chunks:
            if chunk.snapshot != NO_SNAPSHOT:
                inputs.chunk_from[index[chunk.slot]] = self._first_snapshot + chunk.snapshot
            elif chunk.start == 0:
                inputs.chunk_from[index[chunk.slot]] = ZERO_STATE
        for save in plan.saves:
            inputs.chunk_save[index[save.slot]] = self._first_snapshot + save.snapshot


def _append(inputs: StepInputs, chunk: PrefillChunk) -> None:
    """One prefill chunk, then its rows: the scored positions in order, then the position that samples."""
    index, first_token = inputs.num_chunks, inputs.num_tokens - chunk.start
    inputs.chunk_slot[index] = chunk.slot
    inputs.chunk_start[index] = chunk.start
    inputs.chunk_len[index] = chunk.length
    inputs.num_chunks += 1
    inputs.num_tokens += chunk.length
    if chunk.num_scores:
        positions = np.arange(chunk.first_score, chunk.first_score + chunk.num_scores, dtype=np.int32)
        rows = slice(inputs.num_rows, inputs.num_rows + chunk.num_scores)
        inputs.row_token[rows] = positions + first_token
        inputs.row_slot[rows] = chunk.slot
        inputs.row_position[rows] = positions
        inputs.row_kind[rows] = SCORE if chunk.sequence.pool is None else EMBED
        inputs.num_rows += chunk.num_scores
    if chunk.samples:
        row, position = inputs.num_rows, chunk.start + chunk.length - 1
        inputs.row_token[row] = position + first_token
        inputs.row_slot[row] = chunk.slot
        inputs.row_position[row] = position
        inputs.row_kind[row] = SAMPLE if chunk.sequence.pool is None else EMBED
        inputs.num_rows += 1
