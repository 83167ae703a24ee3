"""Embed: one row of the embedding table for each token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.reference_step import ReferenceStep
from firelane.program.values import Cost, Rows, StepShape, Value, Weight


@dataclass(frozen=True, kw_only=True)
class Embed(Op):
    """out[t] = scale * table[token id of row t]. table: [vocab, width]; out: TOKEN rows, F32."""

    table: Weight
    scale: float = 1.0
    out: Value

    def __post_init__(self) -> None:
        assert self.out.rows is Rows.TOKEN, "Embed: out has one row a token"
        assert self.table.shape[1] == self.out.width, f"Embed: table {self.table.shape}, out {self.out.width}"

    def cost(self, shape: StepShape) -> Cost:
        return Cost(weight_bytes=float(shape.tokens * self.out.width * self.table.dtype.itemsize))

    def reference(self, step: ReferenceStep) -> None:
        step.write(self.out, step.weight(self.table)[step.token_ids] * np.float32(self.scale))
