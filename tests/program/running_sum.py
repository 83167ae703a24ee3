"""An op that keeps state, the simplest there is, for tests of what carries states around."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firelane.program.ops import Op
from firelane.program.reference_step import ReferenceStep
from firelane.program.state import StateLayer
from firelane.program.values import Cost, StepShape, Value


@dataclass(frozen=True, kw_only=True)
class RunningSum(Op):
    """out = state = decay * state + x, token after token. The state of any position depends on all tokens
    before it, and on the place of each."""

    x: Value
    layer: str
    decay: float = 0.75
    out: Value

    @property
    def states(self) -> tuple[StateLayer, ...]:
        return (StateLayer(self.layer, (self.x.width,)),)

    def cost(self, shape: StepShape) -> Cost:
        return Cost(flops=2.0 * shape.tokens * self.x.width)

    def reference(self, step: ReferenceStep) -> None:
        x, (layer,) = step.read(self.x), self.states
        out = np.empty_like(x)
        for chunk in step.chunks:
            state = step.read_state(layer, chunk)
            for row in chunk.rows:
                out[row] = state = np.float32(self.decay) * state + x[row]
            step.write_state(layer, chunk, state)
        step.write(self.out, out)
