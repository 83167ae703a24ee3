"""The packed format of each bf16 matrix of a program, chosen before anything is compiled or packed.

    bf16      every matrix unchanged
    lossless  of each matrix the smallest format
    auto      12 bits where the kernels decode them at little cost, else bf16; tiny models: bf16
    int8 …    codes where the checkpoint is read as such, of all others as auto

Matrices that a format does not make smaller stay bf16: those with exponents all over the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from firelane.program.ops import Embed
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.formats.formats import PANEL_ROWS, Format
from firelane.weights.formats.grouped import panel_bytes
from firelane.weights.packing.plan import takes

CODED_FORMS = (Format.PANEL_CODED4, Format.PANEL_CODED3)
CHEAP_DECODING = ("avx512bf16", "avx512", "avx2")
"""Targets whose byte shuffles decode PANEL_CODED4 (csrc/panels/coded.h) faster than memory gives bf16."""
TINY_BYTES = 16 << 20
Estimate = Callable[[Sequence[Weight]], Mapping[str, Mapping[Format, float]]]
"""Bits a weight, by weight name, in each of the formats that make it smaller than bf16."""


@dataclass(frozen=True, kw_only=True)
class FormChoice:
    """Formats by weight name, of those that are not bf16."""

    forms: dict[str, Format] = field(default_factory=dict[str, Format])
    saved_bytes: int = 0
    """Estimated memory that they save."""


def choose(
    program: Program,
    wanted: Sequence[Format],
    estimate: Estimate,
    stored: Callable[[Weight], Format | None] | None = None,
) -> FormChoice:
    """For each bf16 matrix the format that keeps the checkpoint's own codes (`stored`), else the smallest of
    the `wanted` formats that makes it smaller. The estimate is made for matrices that may have one of them,
    and not at all where there is none."""
    quantised = {w: form for w in _matrices(program) if stored and (form := stored(w)) is not None}
    able = {w: [f for f in wanted if takes(w, f)] for w in _matrices(program) if w not in quantised}
    able = {w: forms for w, forms in able.items() if forms}
    bits = dict(estimate(list(able))) if able else {}
    chosen: dict[Weight, Format] = dict(quantised)
    for weight, form in quantised.items():
        bits[weight.name] = {form: 8 * panel_bytes(form, weight.k) / (PANEL_ROWS * weight.k)}
    for weight, forms in able.items():
        smaller = [form for form in forms if form in bits[weight.name]]
        if smaller:
            chosen[weight] = min(smaller, key=bits[weight.name].__getitem__)
    return FormChoice(
        forms={w.name: form for w, form in chosen.items()},
        saved_bytes=int(sum((1 - bits[w.name][form] / 16) * w.nbytes for w, form in chosen.items())),
    )


def is_tiny(program: Program) -> bool:
    """Whether the weights lie in the caches of most CPUs: what they take is no matter then, and that the
    kernels are compiled soon is."""
    return program.weights_bytes <= TINY_BYTES


def wanted_forms(mode: str, isa: str, program: Program) -> tuple[Format, ...]:
    """The formats beside bf16 that --weights `mode` takes on the target `isa`."""
    if mode == "lossless":
        return CODED_FORMS
    if is_tiny(program):
        return ()
    return CODED_FORMS[:1] if mode != "bf16" and isa in CHEAP_DECODING else ()


def _matrices(program: Program) -> Iterator[Weight]:
    """Each bf16 matrix of a product or an embedding, once."""
    tables = [op.table for op in program.ops if isinstance(op, Embed)]
    for weight in dict.fromkeys([*(p.weight for p in program.products), *tables]):
        if weight.dtype is DType.BF16:
            yield weight
