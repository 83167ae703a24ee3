"""The model of a plan: its Program, the form of its weights, and what is found out about them once for all
layouts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from firelane.parallel.balance import live_values, units
from firelane.parallel.shares import cut_values
from firelane.plan.forms import WeightForm
from firelane.program.ops import Op
from firelane.program.program import Program
from firelane.program.values import Value, Weight


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """kv_dtype: of the KV cache, as it was asked for; the program has it already."""

    program: Program
    form: WeightForm
    kv_dtype: str = "auto"

    @cached_property
    def live(self) -> list[list[Value]]:
        """Before each op: the values made already and still to be read."""
        return live_values(self.program)

    @cached_property
    def units(self) -> tuple[range, ...]:
        """Runs of ops that a stage has whole."""
        return units(self.program)

    @cached_property
    def cut(self) -> frozenset[Value]:
        """Values of whose columns a tensor parallel rank has a part."""
        return cut_values(self.program)

    @cached_property
    def kinds(self) -> list[int]:
        """A number for each op: equal ones take equal times. Most layers repeat others."""
        known: dict[Hashable, int] = {}
        return [known.setdefault(self._kind(op), len(known)) for op in self.program.ops]

    def _kind(self, op: Op) -> Hashable:
        fields = tuple(self._described(value) for value in vars(op).values())
        return type(op), op is self.program.head, fields

    def _described(self, field: object) -> Hashable:
        match field:
            case Value():
                return field.width, field.rows, field.dtype, field in self.cut
            case Weight():
                return field.shape, field.dtype, self.form.ratio(field)
            case int() | float() | str() | None:
                return None  # layer numbers, names, constants
            case _:
                return str(field) if _is_short(field) else type(field)


def _is_short(field: object) -> bool:
    """Shapes and spans tell ops apart; angles and norms do not, and are long."""
    return type(field).__name__ in (
        "HeadShape",
        "DeltaShape",
        "StateShape",
        "Causal",
        "Window",
        "Chunk",
        "Bidirectional",
    )
