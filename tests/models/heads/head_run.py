"""Heads, run by the NumPy reference."""

from __future__ import annotations

import numpy as np

from firelane.contract import SCORE, SlotState, StepInputs, StepLimits
from firelane.models.heads.draft_head import DraftHead
from firelane.program.ops import TellFeatures
from firelane.program.reference import ReferenceExecutor, reference_weights

Tensors = dict[str, np.ndarray]
MAX_LEN = 128
LIMITS = StepLimits(
    max_num_seqs=1,
    max_num_batched_tokens=MAX_LEN,
    max_output_rows=MAX_LEN,
    max_model_len=MAX_LEN,
    block_size=16,
    num_blocks=8,
)


def run(head: DraftHead, tensors: Tensors, rows: np.ndarray, depth: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits and told states of rows of one sequence, in two steps of one layer."""
    program = head.programs[depth]
    weights = reference_weights(program, lambda name: tensors[name])
    executor = ReferenceExecutor(program, weights, slots=1, max_len=MAX_LEN)
    state, inputs = (
        SlotState.allocate(LIMITS, program.vocab_size),
        StepInputs.allocate(LIMITS, head.row_width),
    )
    state.sampling["repetition_penalty"] = 1
    logits, told = [], []
    (tell,) = [op for op in program.ops if isinstance(op, TellFeatures)]
    for part in filter(len, (rows[:7], rows[7:])):
        count, start = len(part), sum(map(len, logits))
        inputs.num_chunks, inputs.num_tokens, inputs.num_rows = 1, count, count
        inputs.chunk_slot[0], inputs.chunk_start[0], inputs.chunk_len[0] = 0, start, count
        inputs.features[:count] = part
        inputs.row_token[:count], inputs.row_position[:count] = range(count), range(start, start + count)
        inputs.row_kind[:count] = SCORE
        step = executor.step(inputs, state)
        assert program.head is not None
        logits.append(step.read(program.head.out))
        told.append(step.read(tell.x))
    return np.concatenate(logits), np.concatenate(told)


def drafted(
    head: DraftHead, tensors: Tensors, tokens: list[int], features: np.ndarray, count: int
) -> list[int]:
    """The greedy draft behind `tokens`: a token by each layer, all rows of the text computed anew, and those
    behind by the last layer. features: the target's, of all rows but the last."""
    table, width, found = tensors[head.table], head.width, list[int]()
    told, at, last = features, width, len(head.programs) - 1
    for depth in range(last + 1):
        rows = np.zeros((len(features), head.row_width), np.float32)
        rows[:, :width] = table[[*tokens, *found][depth + 1 : depth + 1 + len(rows)]]
        rows[:, at : at + told.shape[1]] = told
        logits, told = run(head, tensors, rows, depth)
        at = head.own_at
        found.append(int(logits[-1].argmax()))
        if len(found) == count:
            return found
    while len(found) < count:
        behind = np.zeros((1, head.row_width), np.float32)
        behind[0, :width], behind[0, at : at + width] = table[found[-1]], told[-1]
        rows = np.concatenate([rows, behind])
        logits, told = run(head, tensors, rows, last)
        found.append(int(logits[-1].argmax()))
    return found
