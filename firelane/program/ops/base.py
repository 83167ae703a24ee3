"""What every op kind has. An op kind is one frozen dataclass in one file: shapes, cost, NumPy reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from firelane.program.recipes import WeightLayout
from firelane.program.values import Cost, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference import ReferenceStep

Array = NDArray[Any]
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Product:
    """A matrix product of an op, for passes that place, pack and time those whatever the op is: rows of `x`
    times `weight`, for `out`."""

    x: Value
    weight: Weight
    out: Value

    @property
    def layout(self) -> WeightLayout:
        return self.weight.layout


class Op(Protocol):
    """One operation over named values. Its constructor checks shapes (AssertionError names the op and the
    shapes).
    """

    @property
    def inputs(self) -> tuple[Value, ...]: ...

    @property
    def outputs(self) -> tuple[Value, ...]: ...

    @property
    def weights(self) -> tuple[Weight, ...]: ...

    @property
    def products(self) -> tuple[Product, ...]: ...

    def cost(self, shape: StepShape) -> Cost: ...

    def reference(self, step: ReferenceStep) -> None:
        """Compute the outputs from the inputs in NumPy, slowly and plainly, in float32; the oracle of kernel
        tests.
        """
        ...
