"""HeadLinear: a matrix product of its own for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops.base import Op, Product
from firelane.program.values import Cost, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class HeadLinear(Op):
    """Head i of out = [x's head i, but for its last `keep` columns, · weight[i]ᵀ | those columns]. weight:
    [heads, b, a]; x: [T, heads · (a + keep)]; out: [T, heads · (b + keep)], of x's dtype. Sums in float32.
    Latent attention (DeepSeek V2, 2024) takes queries to latents and attended latents to values with it."""

    x: Value
    weight: Weight
    keep: int = 0
    out: Value

    def __post_init__(self) -> None:
        name = f"HeadLinear {self.out.name}"
        assert self.weight.layout.by_expert, f"{name}: layout"
        assert not self.weight.layout.is_gated, f"{name}: layout"
        heads, b, a = self.weight.shape
        assert (self.x.width, self.out.width) == (heads * (a + self.keep), heads * (b + self.keep)), (
            f"{name}: weight {self.weight.shape}, keep {self.keep}, x {self.x.width}, out {self.out.width}"
        )
        assert self.x.dtype is self.out.dtype, f"{name}: x and out differ in dtype"

    @property
    def products(self) -> tuple[Product, ...]:
        return (Product(self.x, self.weight, self.out),)

    def cost(self, shape: StepShape) -> Cost:
        heads, b, a = self.weight.shape
        return Cost(
            flops=2.0 * shape.rows(self.x.rows) * heads * a * b, weight_bytes=float(self.weight.nbytes)
        )

    def reference(self, step: ReferenceStep) -> None:
        x = step.read(self.x)
        heads, _, a = self.weight.shape
        by_head = x.reshape(len(x), heads, a + self.keep)
        made = head_products(by_head[..., :a], step.weight(self.weight))
        step.write(self.out, np.concatenate([made, by_head[..., a:]], axis=-1).reshape(len(x), -1))


def head_products(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Products of each head with its own matrix, row by row: a library's product of many rows may round each
    of them as their number suits it. x: [rows, heads, a]; weight: [heads, b, a]; returns [rows, heads, b]."""
    rows = [(weight @ row[:, :, None])[:, :, 0] for row in x]
    return np.array(rows, np.float32).reshape(len(x), *weight.shape[:2])
