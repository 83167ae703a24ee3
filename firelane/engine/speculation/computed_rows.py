"""The rows of a step that stay: those of tokens that the model has verified."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from firelane.contract import StepInputs, StepOutputs
from firelane.engine.sequences.sequence import Status
from firelane.engine.sequences.table import SequenceTable
from firelane.engine.speculation.proposer import ComputedRows
from firelane.engine.step.plan import StepPlan


def computed_rows(
    table: SequenceTable, plan: StepPlan, inputs: StepInputs, outputs: StepOutputs
) -> Iterator[ComputedRows]:
    """By chunk, of sequences that run and may have drafts."""
    verified = _verified(plan, inputs, outputs)
    begun = {chunk.slot for chunk in plan.chunks if chunk.writes_row}
    first = np.cumsum(inputs.chunk_len[: inputs.num_chunks]) - inputs.chunk_len[: inputs.num_chunks]
    for chunk, (row, count) in enumerate(zip(first.tolist(), verified.tolist(), strict=True)):
        slot = int(inputs.chunk_slot[chunk])
        sequence = table.sequences[slot]
        if sequence is None or sequence.status is not Status.RUNNING:
            continue
        if sequence.pool is None and sequence.most_drafted:
            start = int(inputs.chunk_start[chunk])
            features = outputs.features[row : row + count]
            yield ComputedRows(slot, sequence, start, features, begins=slot in begun)


def _verified(plan: StepPlan, inputs: StepInputs, outputs: StepOutputs) -> NDArray[np.int32]:
    """int32 [chunks]: leading rows of each chunk whose tokens are no wrong draft."""
    counts = inputs.chunk_len[: inputs.num_chunks].copy()
    if plan.drafts is not None:
        wrong = plan.drafts.lengths - plan.drafts.won(outputs.tokens)
        counts[: len(plan.decode_slots)] -= wrong
    return counts
