"""An op of no kind, for tests of passes."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.ops import Op, Product
from firelane.program.program import Program
from firelane.program.reference_step import ReferenceStep
from firelane.program.values import Cost, StepShape, Value, Weight


@dataclass(frozen=True, kw_only=True)
class Fake(Op):
    inputs: tuple[Value, ...] = ()
    out: Value
    weights: tuple[Weight, ...] = ()
    products: tuple[Product, ...] = ()

    def cost(self, shape: StepShape) -> Cost:
        return Cost(flops=float(shape.tokens))

    def reference(self, step: ReferenceStep) -> None:
        raise NotImplementedError


def fake_program(*ops: Fake) -> Program:
    return Program(name="fake", vocab_size=1, max_model_len=1, ops=ops)
