"""Writes what a plan needs where the backend reads it: the step's arrays, and the rows of new sequences.

Two sets of StepInputs take turns, so that one can be filled while the other belongs to the step in flight
and is read again when that step is committed.
"""

from __future__ import annotations

import numpy as np

from firelane.backends.contract import EMBED, MAX_STOP_IDS, SAMPLE, SCORE, SlotState, StepInputs, StepLimits
from firelane.engine.grammar.constraint import Constraints
from firelane.engine.plan import PrefillChunk, StepPlan
from firelane.engine.sequence import Sequence

NO_TOKEN = -1


class InputWriter:
    def __init__(self, limits: StepLimits, state: SlotState, constraints: Constraints) -> None:
        self._state = state
        self._constraints = constraints
        self._sets = (StepInputs.allocate(limits), StepInputs.allocate(limits))
        self._count = np.arange(limits.max_num_seqs, dtype=np.int32)
        state.stop_ids.fill(NO_TOKEN)

    def fill(self, plan: StepPlan) -> StepInputs:
        """The arrays of `plan`, valid until the second next step is filled. May run while a step is in
        flight."""
        inputs = self._sets[plan.step % 2]
        decodes = len(plan.decode_slots)
        inputs.chunk_slot[:decodes] = plan.decode_slots
        inputs.chunk_start[:decodes] = plan.decode_positions
        inputs.chunk_len[:decodes] = 1
        inputs.row_token[:decodes] = self._count[:decodes]
        inputs.row_slot[:decodes] = plan.decode_slots
        inputs.row_position[:decodes] = plan.decode_positions
        inputs.row_kind[:decodes] = SAMPLE
        inputs.num_chunks = inputs.num_tokens = inputs.num_rows = decodes
        # Embeddings last: rows behind all others that want logits cost none.
        for chunk in sorted(plan.chunks, key=lambda chunk: chunk.sequence.pool is not None):
            _append(inputs, chunk)
        return inputs

    def install(self, plan: StepPlan) -> None:
        """Write the slot rows that `plan` changes. Only while no step is in flight."""
        if plan.new_blocks:
            slots, indices, blocks = np.array(plan.new_blocks, np.int32).T
            self._state.block_tables[slots, indices] = blocks
        for chunk in plan.chunks:
            if chunk.admitted:
                self._install_sequence(chunk.sequence)

    def _install_sequence(self, sequence: Sequence) -> None:
        state, slot, sampling = self._state, sequence.slot, sequence.sampling
        assert sequence.blocks is not None
        blocks = sequence.blocks.ids()
        stops, bias = sampling.stop_token_ids, sampling.logit_bias
        state.tokens[slot, : len(sequence.tokens)] = sequence.tokens
        state.block_tables[slot, : len(blocks)] = blocks
        state.stop_ids[slot] = stops + [NO_TOKEN] * (MAX_STOP_IDS - len(stops))
        if bias:
            state.bias_ids[slot, : len(bias)] = [token for token, _ in bias]
            state.bias_values[slot, : len(bias)] = [value for _, value in bias]
        row = state.sampling[slot]
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"):
            row[name] = getattr(sampling, name)
        row["frequency_penalty"] = sampling.frequency_penalty
        row["top_k"] = sampling.top_k
        row["logprobs"] = max(sampling.logprobs, sampling.prompt_logprobs)
        row["seed"] = sampling.seed % 2**64
        row["prompt_len"] = sequence.prompt_len
        row["stop_from"] = sequence.prompt_len + sampling.min_tokens
        row["num_stop_ids"] = len(stops)
        row["num_bias"] = len(bias)
        self._constraints.install(sequence)


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
