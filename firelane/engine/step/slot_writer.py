"""The one writer of SlotState: rows of sequences that get a slot, new pages, and grammar masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from firelane.contract import MAX_STOP_IDS, SlotState, StepInputs
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.step.drafts import Drafts

NO_TOKEN = -1


class SlotWriter:
    """Writes only what no step in flight reads: rows of slots without a chunk in flight, and pages behind
    those that a chunk in flight may read."""

    def __init__(self, state: SlotState) -> None:
        self._state = state
        self._mask_bytes = state.masks.shape[1] * state.masks.itemsize
        state.stop_ids.fill(NO_TOKEN)

    def write_page(self, group: int, slot: int, index: int, page: int) -> None:
        """An entry of one block table."""
        self._state.block_tables[group, slot, index] = page

    def write_pages(
        self, slots: NDArray[np.int64], indices: NDArray[np.int32], pages: list[list[int]]
    ) -> None:
        """One entry for each slot in the block tables of all groups; pages: by group and slot."""
        self._state.block_tables[:, slots, indices] = pages

    def write_row(self, sequence: Sequence) -> None:
        """All that a sequence needs in its new slot, but for its mask."""
        state, slot, sampling = self._state, sequence.slot, sequence.sampling
        state.tokens[slot, : len(sequence.tokens)] = sequence.tokens
        state.adapter[slot] = sequence.adapter
        self._write_tables(sequence)
        stops, reported = sampling.stop_token_ids, sampling.logprob_token_ids
        bias = [*((token, 0.0) for token in reported), *sampling.logit_bias]
        state.stop_ids[slot] = stops + [NO_TOKEN] * (MAX_STOP_IDS - len(stops))
        if bias:
            state.bias_ids[slot, : len(bias)] = [token for token, _ in bias]
            state.bias_values[slot, : len(bias)] = [value for _, value in bias]
        state.sampling[slot] = (  # in the order of SAMPLING_DTYPE
            *(sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty),
            *(sampling.presence_penalty, sampling.frequency_penalty, sampling.top_k),
            *(max(sampling.logprobs, sampling.prompt_logprobs), sampling.seed % 2**64),
            *(sequence.prompt_len, sequence.prompt_len + sampling.min_tokens, len(stops), len(bias)),
            *(sequence.constraint is not None, sequence.second_text, len(reported)),
        )

    def write_drafts(self, inputs: StepInputs, drafts: Drafts) -> None:
        """The drafted tokens of a step, behind the tokens that are known."""
        rows = np.flatnonzero(drafts.drafted_rows())
        self._state.tokens[inputs.row_slot[rows], inputs.row_position[rows] + 1] = drafts.tokens

    def write_mask(self, slot: int, mask: NDArray[np.uint32]) -> None:
        self._state.masks[slot] = mask

    def allows(self, row: int, token: int) -> bool:
        """Whether a row of masks has the token."""
        return bool(int(self._state.masks[row, token >> 5]) >> (token & 31) & 1)

    def compute_mask(self, row: int, compute: Callable[[int, int], object]) -> None:
        """Have a row of masks written by `compute(address, bytes)`."""
        compute(self._state.masks.ctypes.data + row * self._mask_bytes, self._mask_bytes)

    def finish_mask(self, row: int, end: int, stop_ids: list[int]) -> bool:
        """Finish the mask: where it allows `end`, the mark of a text that may end, allow `stop_ids` instead.
        True where nothing but the end was allowed."""
        mask = self._state.masks[row]
        word, bit = end >> 5, 1 << (end & 31)
        if not int(mask[word]) & bit:
            return False
        mask[word] &= np.uint32(0xFFFFFFFF ^ bit)
        complete = not mask.any()
        for token in stop_ids:
            mask[token >> 5] |= np.uint32(1 << (token & 31))
        return complete

    def _write_tables(self, sequence: Sequence) -> None:
        """Entries of released pages stay as they are."""
        blocks = sequence.blocks
        assert blocks is not None
        for group, (table, first) in enumerate(zip(blocks.tables, blocks.first, strict=True)):
            self._state.block_tables[group, sequence.slot, first : len(table)] = blocks.held(group)
