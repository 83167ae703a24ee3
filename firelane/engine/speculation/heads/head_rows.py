"""HeadRows: what a head's token rows are made of, and which tokens its numbers stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class HeadRows:
    """The parts of a head's feature rows, in columns: the embedding of the token behind the row from 0 on,
    what the target has computed behind that, and what the head has told of the row before from own_at on.

    table: float32, float16, or bits of bf16 as uint16, [vocabulary, width]. token_ids: int64, the target's
    token by the head's number; None: they are the same.
    """

    table: NDArray[Any]
    target_width: int
    own_at: int
    row_width: int
    token_ids: NDArray[np.int64] | None = None

    @property
    def width(self) -> int:
        return self.table.shape[1]

    def write_verified(self, out: F32, tokens: NDArray[np.int32], features: F32) -> None:
        """Rows of tokens that the target has computed. out: float32 [n, row_width]; tokens: int32 [n], behind
        each row; features: float32 [n, target_width], the target's."""
        out[:] = 0
        out[:, : self.width] = self._embedded(tokens)
        out[:, self.width : self.width + self.target_width] = features

    def write_drafted(self, out: F32, tokens: NDArray[np.int32], told: F32) -> None:
        """Rows behind drafted tokens. out: float32 [n, row_width]; tokens: int32 [n], the drafted ones; told:
        float32 [n, width], by the head of the rows before."""
        out[:] = 0
        out[:, : self.width] = self._embedded(tokens)
        out[:, self.own_at : self.own_at + told.shape[1]] = told

    def tokens(self, numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """The target's tokens of what the head has drawn, int32 of the same shape."""
        return numbers if self.token_ids is None else self.token_ids[numbers].astype(np.int32)

    def _embedded(self, tokens: NDArray[np.int32]) -> F32:
        found = self.table[tokens]
        if found.dtype == np.uint16:  # the bits of bf16
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found.astype(np.float32, copy=False)
