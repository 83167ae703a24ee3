"""ShortConv: a causal convolution of each channel over the last few tokens (Fu et al., "Hungry Hungry
Hippos", 2023; Poli et al., "Hyena", 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.ops.gated import activated
from firelane.program.state import StateLayer
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class ShortConv(Op):
    """out[t] = act(sum over j of weight[j] · x[t - taps + 1 + j] + bias), for each of the first out.width
    channels of x; tokens before a sequence's first count as zeros. weight: [taps * out.width] F32, the oldest
    tap of all channels first; bias: [out.width] F32; x, out: F32. Summed in float32, from the oldest tap on.

    State: the channels of the last taps - 1 tokens, the oldest first.
    """

    x: Value
    taps: int
    weight: Weight
    bias: Weight | None = None
    act: Literal["silu", "none"] = "none"
    out: Value

    def __post_init__(self) -> None:
        name, width = f"ShortConv {self.out.name}", self.out.width
        assert self.x.dtype is self.out.dtype is DType.F32, f"{name}: x and out are F32"
        assert self.x.width >= width, f"{name}: {width} of x {self.x.width}"
        assert self.taps > 1, f"{name}: {self.taps} taps"
        assert self.weight.shape == (self.taps * width,), f"{name}: weight {self.weight.shape}"
        assert self.bias is None or self.bias.shape == (width,), f"{name}: bias {self.bias.shape}"
        assert all(w.dtype is DType.F32 for w in self.weights), f"{name}: weight and bias are F32"

    @property
    def states(self) -> tuple[StateLayer, ...]:
        return (StateLayer(self.out.name, (self.taps - 1, self.out.width)),)

    def cost(self, shape: StepShape) -> Cost:
        (state,) = self.states
        return Cost(
            flops=2.0 * shape.rows(self.x.rows) * self.taps * self.out.width,
            weight_bytes=float(sum(w.nbytes for w in self.weights)),
            kv_bytes=2.0 * shape.sequences * state.nbytes,
        )

    def reference(self, step: ReferenceStep) -> None:
        (state,) = self.states
        x = step.read(self.x)[:, : self.out.width]
        weight = step.weight(self.weight).reshape(self.taps, -1)
        out = np.empty_like(x)
        for chunk in step.chunks:
            seen = np.concatenate([step.read_state(state, chunk), x[chunk.rows]])
            out[chunk.rows] = sum(weight[j] * seen[j : j + len(chunk.rows)] for j in range(self.taps))
            step.write_state(state, chunk, seen[len(chunk.rows) :])
        if self.bias is not None:
            out += step.weight(self.bias)
        step.write(self.out, activated(out, self.act))
