"""The interface of every op kind. An op kind is one frozen dataclass in one file: shapes, cost, NumPy
reference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from firelane.program.recipes import WeightLayout
from firelane.program.state import StateLayer
from firelane.program.values import Cost, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

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


class Op(ABC):
    """One operation over named values. Its constructor checks shapes (AssertionError names the op and the
    shapes).
    """

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Its fields of that type, but for `out`."""
        return tuple(v for name, v in vars(self).items() if isinstance(v, Value) and name != "out")

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Its field `out`, if it has one."""
        return tuple(v for name, v in vars(self).items() if isinstance(v, Value) and name == "out")

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Its fields of that type."""
        return tuple(v for v in vars(self).values() if isinstance(v, Weight))

    @property
    def products(self) -> tuple[Product, ...]:
        return ()

    @property
    def states(self) -> tuple[StateLayer, ...]:
        """Numbers that it keeps of each sequence from token to token.

        The state after a token depends on the state before it and on that token's row alone, and is computed
        in the same way whatever tokens run beside it: so results do not depend on how a sequence is cut into
        chunks."""
        return ()

    @abstractmethod
    def cost(self, shape: StepShape) -> Cost: ...

    @abstractmethod
    def reference(self, step: ReferenceStep) -> None:
        """Compute the outputs from the inputs in NumPy, slowly and plainly, in float32; the oracle of kernel
        tests.
        """


def with_values(op: Any, values: Mapping[Value, Value]) -> Op:
    """The op with other values in place of those that are keys of `values`."""
    fields = {name: values[v] for name, v in vars(op).items() if isinstance(v, Value) and v in values}
    return replace(op, **fields)
