"""Runs of toy models by a group of ranks in NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from firelane.contract import SAMPLE, SCORE, ZERO_STATE, SlotState, StepInputs, StepLimits
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.program import Program
from firelane.program.reference import reference_weights
from tests.models.toy_config import MAX_LEN
from tests.parallel.reference_group import ReferenceGroup

LIMITS = StepLimits(
    max_num_seqs=2,
    max_num_batched_tokens=64,
    max_output_rows=64,
    max_model_len=MAX_LEN,
    block_size=16,
    num_blocks=32,
)
SLOT = 1


class Toy:
    """A sequence in slot 1 of a group of ranks."""

    def __init__(
        self, program: Program, tensors: Mapping[str, np.ndarray], layout: RankLayout, tokens: np.ndarray
    ) -> None:
        self.layout = layout
        self.programs = [rank_program(program, layout, rank) for rank in range(layout.ranks)]
        weights = [reference_weights(own, tensors.__getitem__) for own in self.programs]
        self.group = ReferenceGroup(layout, self.programs, weights, slots=2, max_len=MAX_LEN)
        self.state = SlotState.allocate(LIMITS, program.vocab_size)
        self.inputs = StepInputs.allocate(LIMITS)
        self.state.tokens[SLOT, : len(tokens)] = tokens
        self.state.sampling["repetition_penalty"] = 1
        self.length = 0

    def step(self, tokens: int, kind: int = SCORE) -> np.ndarray:
        """Logits of the next so many tokens; with SAMPLE the token behind each is drawn."""
        inputs, first = self.inputs, self.length
        inputs.num_chunks, inputs.num_tokens, inputs.num_rows = 1, tokens, tokens
        inputs.chunk_slot[0], inputs.chunk_start[0], inputs.chunk_len[0] = SLOT, first, tokens
        inputs.chunk_from[0] = SLOT if first else ZERO_STATE
        inputs.row_token[:tokens], inputs.row_slot[:tokens] = range(tokens), SLOT
        inputs.row_position[:tokens] = range(first, first + tokens)
        inputs.row_kind[:tokens] = kind
        self.length += tokens
        step = self.group.step(inputs, self.state)[self.layout.sampler]
        return next(array for value, array in step.values.items() if value.name == "logits")

    def logits(self, prompt: int, drawn: int) -> np.ndarray:
        """Return the logits of a prompt in two chunks, and of so many tokens that are drawn behind it."""
        rows = [self.step(prompt - prompt // 3), self.step(prompt // 3, SAMPLE)]
        return np.concatenate([*rows, *(self.step(1, SAMPLE) for _ in range(drawn))])
