"""Tables by position, made as far as sequences have come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from firelane.contract import StepInputs
from firelane.program.ops import Rotary, Temperature

MADE_AT_ONCE = 1024
"""Positions: a step that comes to new ones takes about a millisecond longer."""


class PositionTables:
    """The tables of a program with room for all positions. Rows are made before the first step that needs
    them: a start waits for few. Rows that are there never change.

    arrays: of each table its float32 rows, [max_model_len] or [max_model_len, head_dim]; what is not made yet
    is undefined.
    """

    def __init__(self, tables: Sequence[Rotary | Temperature], max_model_len: int) -> None:
        self._tables, self._max_model_len, self._made = tables, max_model_len, 0
        shapes = [(max_model_len, *table.table(1).shape[1:]) for table in tables]
        self.arrays: list[NDArray[np.float32]] = [np.empty(shape, np.float32) for shape in shapes]

    def make_for(self, inputs: StepInputs) -> None:
        """Make the rows that a step needs."""
        chunks = slice(inputs.num_chunks)
        ends = inputs.chunk_start[chunks] + inputs.chunk_len[chunks]
        self.make(int(ends.max(initial=0)))

    def make(self, positions: int) -> None:
        """Make the rows of the first `positions`, of max_model_len at most, and of some that follow."""
        if positions <= self._made:
            return
        begin, self._made = self._made, min(-(-positions // MADE_AT_ONCE) * MADE_AT_ONCE, self._max_model_len)
        for table, array in zip(self._tables, self.arrays, strict=True):
            array[begin : self._made] = table.table(self._made - begin, begin=begin)
