"""Several programs as one, for tests of kernels: what a compiler does once for each program, it does once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from firelane.program.ops import Op, Sample
from firelane.program.program import Program
from firelane.program.values import Value, Weight

LAYERS_APART = 100
"""From the first layer of one program to that of the next."""


def joined(programs: Mapping[str, Program]) -> Program:
    """All ops of `programs` one after the other, named by their keys. The head that is sampled from is that
    of the last; those of the others are products like any."""
    *_, (last, program) = programs.items()
    head = None if program.head is None else _renamed(program.head, last, (len(programs) - 1) * LAYERS_APART)
    return replace(program, ops=tuple(_ops(programs)), head=head)


def program_of(weight: str) -> str:
    """The program of `joined` that the weight of this name is of; "" in one that was not joined."""
    return weight.rpartition("/")[0]


def _ops(programs: Mapping[str, Program]) -> Iterator[Op]:
    for number, (name, program) in enumerate(programs.items()):
        is_last = number == len(programs) - 1
        for op in program.ops:
            if is_last or not isinstance(op, Sample):
                yield _renamed(op, name, number * LAYERS_APART)


def _renamed(item: Any, name: str, first_layer: int) -> Any:
    """With the program's name before those of all values and weights, and its own layer numbers."""
    if isinstance(item, Value | Weight):
        return replace(item, name=f"{name}/{item.name}")
    if not is_dataclass(item) or isinstance(item, type):
        return item
    changes = {f.name: _renamed(getattr(item, f.name), name, first_layer) for f in fields(item) if f.init}
    if isinstance(item, Op) and "layer" in changes:
        changes["layer"] += first_layer
    return replace(item, **changes)
