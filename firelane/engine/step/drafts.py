"""The drafts of a step, and how many of their tokens the model has drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Drafts(NamedTuple):
    """Drafted tokens of the decodes of a step, in their order.

    counts: int32 [decodes], drafted tokens of each decode; tokens: int32 [sum of counts], one decode after
    the other; masks: int32 [sum of counts], StepInputs.row_mask of the row behind each drafted token. A
    decode of n drafted tokens has n + 1 token rows, each with a SAMPLE row. spares: int32 [decodes],
    StepInputs.chunk_spare of those with a draft; None where the program keeps no recurrent state.
    """

    counts: NDArray[np.int32]
    tokens: NDArray[np.int32]
    masks: NDArray[np.int32]
    spares: NDArray[np.int32] | None = None

    @classmethod
    def of(cls, runs: Sequence[list[int]], masks: Sequence[list[int]]) -> Drafts:
        """Drafts of each decode in order; an empty list drafts nothing. masks: as many numbers for each, or
        none."""
        tokens = [token for run in runs for token in run]
        rows = [row for run, own in zip(runs, masks, strict=True) for row in own or [0] * len(run)]
        counts = [len(run) for run in runs]
        return cls(np.array(counts, np.int32), np.array(tokens, np.int32), np.array(rows, np.int32))

    @property
    def lengths(self) -> NDArray[np.int32]:
        """int32 [decodes]: rows of each decode."""
        return self.counts + 1

    @property
    def first_rows(self) -> NDArray[np.int64]:
        """int64 [decodes]: the first row of each decode."""
        lengths = self.lengths
        return np.cumsum(lengths) - lengths

    @property
    def num_rows(self) -> int:
        return len(self.counts) + len(self.tokens)

    def drafted_rows(self) -> NDArray[np.bool_]:
        """bool [num_rows]: the rows whose drawn token was drafted, which are all but the last of a decode."""
        drafted = np.ones(self.num_rows, np.bool_)
        drafted[self.first_rows + self.counts] = False
        return drafted

    def won(self, drawn: NDArray[np.int32]) -> NDArray[np.int32]:
        """The number of tokens that each decode has got, int32 [decodes], at least 1: one, and the drafted
        ones before it that were drawn.

        drawn: int32 [num_rows or more]. A row counts where all rows before it drew their drafted token.
        """
        rows, first = np.arange(self.num_rows), self.first_rows
        drafted = self.drafted_rows()
        is_last = ~drafted
        is_last[drafted] = drawn[: self.num_rows][drafted] != self.tokens
        ends = np.where(is_last, rows, self.num_rows)
        return (np.minimum.reduceat(ends, first) - first + 1).astype(np.int32)
