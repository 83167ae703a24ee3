"""Which form each matrix of a program has in memory: known before anything is compiled or packed.

    bf16      every matrix as it is
    lossless  of each matrix the smallest form
    auto      of each matrix the form that the tuner found the fastest for its shape, of those that make it
              smaller

Only bf16 matrices take part, and those alone that a form makes smaller: a matrix with exponents all over the
range stays as it is. An embedding table that no product uses is never read whole, so that its form shows in
no step's time: `auto` gives it 12 bits where the kernels decode them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from firelane.backends.cpu.tuning.projections import WINDOW_FORMS, projections
from firelane.backends.cpu.tuning.table import Tuning
from firelane.program.ops import Embed
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.formats import Format

NO_TUNING = Tuning(ranking={}, source="not asked for")
Census = Callable[[Sequence[Weight]], Mapping[str, Mapping[Format, float]]]
"""Bits a weight, by weight name, in each of the forms that make it smaller than bf16."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """forms: by weight name, where not bf16. saved_bytes: about how much smaller they are than bf16.
    decode_once_from: as CpuExecutor takes it."""

    forms: dict[str, Format] = field(default_factory=dict[str, Format])
    saved_bytes: int = 0
    decode_once_from: dict[str, int] = field(default_factory=dict[str, int])


def choose(program: Program, mode: str, tune: Callable[[], Tuning], census: Census) -> Choice:
    """The forms of `program`'s matrices under --weights `mode`. `tune` is called for "auto" alone; the census
    is taken of matrices that may have another form, and not at all where there is none."""
    tuning = tune() if mode == "auto" else NO_TUNING
    wanted = {w: forms for w, forms in _wishes(program, mode, tuning) if forms}
    if not wanted:
        return Choice()
    bits, products = census(list(wanted)), projections(program)
    chosen: dict[Weight, Format] = {}
    for weight, forms in wanted.items():
        form = _pick(forms, bits.get(weight.name, {}), smallest=mode == "lossless")
        if form is not None:
            chosen[weight] = form
    once = {w.name: tuning.decode_once_from.get((products[w], f)) for w, f in chosen.items() if w in products}
    return Choice(
        forms={w.name: form for w, form in chosen.items()},
        saved_bytes=int(sum((1 - bits[w.name][form] / 16) * w.nbytes for w, form in chosen.items())),
        decode_once_from={name: tiles for name, tiles in once.items() if tiles is not None},
    )


def _wishes(program: Program, mode: str, tuning: Tuning) -> Iterator[tuple[Weight, tuple[Format, ...]]]:
    """Each bf16 matrix with the window forms that it may have, best first."""
    if mode == "bf16":
        return
    products = projections(program)
    tables = [op.table for op in program.ops if isinstance(op, Embed) and op.table.dtype is DType.BF16]
    for weight in dict.fromkeys([*products, *tables]):
        if mode == "lossless":
            yield weight, tuple(f for f in WINDOW_FORMS if weight.shape[1] % f.k_multiple == 0)
        elif weight in products:
            ranking = tuning.ranking[products[weight]]
            yield weight, ranking[: ranking.index(Format.PANEL_BF16)]
        else:
            yield weight, tuple(f for f in tuning.tables if weight.shape[1] % f.k_multiple == 0)


def _pick(forms: Sequence[Format], bits: Mapping[Format, float], *, smallest: bool) -> Format | None:
    able = [form for form in forms if form in bits]
    if smallest:
        return min(able, key=lambda form: bits[form], default=None)
    return able[0] if able else None
