"""Small programs that hold every distinct product of a model in every form.

Timed one after another in the same step, forms meet the same machine: where its speed drifts, their ratios
do not. What surrounds the products (norms, attention) is the model's own.

A program is cut where a single value is alive: for a decoder, after the embedding, around each half of a
layer, before and after the head. A trial is one such piece, once for each form and all on the same input,
after those pieces before it that change the value's type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

from firelane.backends.cpu.tuning.projections import FORMS, Projection, projections
from firelane.program.ops import Embed, GatedLinear, Linear, Op
from firelane.program.program import Program
from firelane.program.values import Value, Weight
from firelane.weights.formats import Format

TABLE_ROWS = 64
"""Rows of a trial's embedding tables; its steps use no token beyond."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """`forms`: of the program's weights, where not bf16. `timed`: what op number i multiplies, in which
    form."""

    program: Program
    forms: dict[str, Format]
    timed: dict[int, tuple[Projection, Format]]


@dataclass(frozen=True)
class Piece:
    """Ops that make one value of one other: `source` is None at the program's start, `result` at its end."""

    ops: tuple[Op, ...]
    source: Value | None
    result: Value | None

    @property
    def keeps_type(self) -> bool:
        a, b = self.source, self.result
        return a is not None and b is not None and (a.rows, a.width, a.dtype) == (b.rows, b.width, b.dtype)

    def products(self, matrices: dict[Weight, Projection]) -> set[Projection]:
        used = (op.weight for op in self.ops if isinstance(op, Linear | GatedLinear))
        return {matrices[weight] for weight in used if weight in matrices}


def pieces(program: Program) -> list[Piece]:
    """The program, cut wherever one value alone is needed further on."""
    last_use = {v: i for i, op in enumerate(program.ops) for v in op.inputs}
    found: list[Piece] = []
    alive: set[Value] = set()
    start, source = 0, None
    for i, op in enumerate(program.ops):
        alive = {v for v in alive | set(op.outputs) if last_use.get(v, -1) > i}
        if len(alive) == 1 or i + 1 == len(program.ops):
            result = next(iter(alive), None)
            found.append(Piece(program.ops[start : i + 1], source, result))
            start, source = i + 1, result
    return found


def trials_of(program: Program, *, least_bytes: int = 0) -> list[Trial]:
    """One trial for each piece with a product that those before it do not have; they compile apart. Its forms
    are repeated, each time with weights of their own, until it has `least_bytes` of them."""
    cut = pieces(program)
    matrices = projections(program)
    seen: set[Projection] = set()
    trials: list[Trial] = []
    for piece in cut:
        products = piece.products(matrices)
        if not products <= seen:
            seen |= products
            once = _trial(program, cut, piece, matrices, FORMS)
            copies = -(-least_bytes // once.program.weights_bytes)
            trials.append(_trial(program, cut, piece, matrices, FORMS * copies) if copies > 1 else once)
    return trials


def _trial(
    program: Program,
    cut: list[Piece],
    wanted: Piece,
    matrices: dict[Weight, Projection],
    forms: Sequence[Format],
) -> Trial:
    """`wanted` in all `forms`, after what leads up to it."""
    builder = _Builder(matrices=matrices)
    for piece in cut[: cut.index(wanted)]:
        if not piece.keeps_type:
            builder.add(piece, FORMS[:1])
    builder.add(wanted, forms)
    return Trial(
        program=replace(program, name=f"a trial of {program.name}", ops=tuple(builder.ops)),
        forms=builder.forms,
        timed=builder.timed,
    )


@dataclass
class _Builder:
    matrices: dict[Weight, Projection]
    ops: list[Op] = field(default_factory=list[Op])
    forms: dict[str, Format] = field(default_factory=dict[str, Format])
    timed: dict[int, tuple[Projection, Format]] = field(default_factory=dict[int, tuple[Projection, Format]])
    _carried: Value | None = None
    _copies: int = 0
    _layers: int = 0

    def add(self, piece: Piece, forms: Sequence[Format]) -> None:
        """One copy of the piece for each of `forms`; what follows goes on from the last one."""
        result: Value | None = None
        for form in forms:
            renamed = {piece.source: self._carried} if piece.source and self._carried else {}
            layers: dict[int, int] = {}
            for op in piece.ops:
                self._note(op, form)
                self.ops.append(_copy(op, f"#{self._copies}", renamed, layers, self._layers))
            self._layers += len(layers)
            self._copies += 1
            result = renamed.get(piece.result) if piece.result is not None else None
        self._carried = result

    def _note(self, op: Op, form: Format) -> None:
        projection = self.matrices.get(op.weight) if isinstance(op, Linear | GatedLinear) else None
        if projection is None or form not in projection.forms:
            return
        self.timed[len(self.ops)] = (projection, form)
        if form.is_window:
            self.forms[f"{op.weights[0].name}#{self._copies}"] = form


def _copy(op: Op, suffix: str, renamed: dict[Value, Value], layers: dict[int, int], first_layer: int) -> Op:
    """The op with values, weights and layers of its own; `renamed` and `layers` say which, and grow."""
    changes = dict(_changes(op, suffix, renamed))
    layer = getattr(op, "layer", None)
    if layer is not None:
        changes["layer"] = layers.setdefault(layer, first_layer + len(layers))
    return replace(op, **changes)  # pyright: ignore[reportArgumentType]


def _changes(op: Op, suffix: str, renamed: dict[Value, Value]) -> Iterator[tuple[str, Value | Weight | int]]:
    for name in (f.name for f in fields(op)):  # pyright: ignore[reportArgumentType]
        given = getattr(op, name)
        if isinstance(given, Value):
            yield name, renamed.setdefault(given, replace(given, name=f"{given.name}{suffix}"))
        elif isinstance(given, Weight):
            weight = replace(given, name=f"{given.name}{suffix}")
            yield name, _shortened(weight) if isinstance(op, Embed) else weight


def _shortened(table: Weight) -> Weight:
    rows = min(TABLE_ROWS, table.shape[0])
    return replace(table, shape=(rows, table.shape[1]), tensors=table.tensors[:1], parts=(rows,))
