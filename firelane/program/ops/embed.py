"""Embed: one row of the embedding table for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.values import Cost, RankPart, Rows, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class Embed(Op):
    """out[t] = scale * table[token id of row t]. table: [vocab, width]; out: TOKEN rows, F32. Of a rank the
    table may be a `part`: rows of tokens that it does not have are zeros."""

    table: Weight
    scale: float = 1.0
    part: RankPart | None = None
    out: Value

    def __post_init__(self) -> None:
        assert self.out.rows is Rows.TOKEN, "Embed: out has one row a token"
        assert self.table.shape[1] == self.out.width, f"Embed: table {self.table.shape}, out {self.out.width}"

    def cost(self, shape: StepShape) -> Cost:
        share = self.table.rows / self.part.of if self.part else 1.0
        return Cost(weight_bytes=share * shape.tokens * self.out.width * self.table.dtype.itemsize)

    def reference(self, step: ReferenceStep) -> None:
        table, rows = step.weight(self.table), step.token_ids - (self.part.first if self.part else 0)
        there = (rows >= 0) & (rows < len(table))
        found = np.where(there[:, None], table[np.where(there, rows, 0)], np.float32(0))
        step.write(self.out, found * np.float32(self.scale))
