"""Matrices as C++: the type of their panels, and where they lie."""

from __future__ import annotations

from firelane.backends.cpu.codegen.integer_calls import parameters
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.codegen.operands import tag
from firelane.program.values import DType, Weight
from firelane.weights.formats.formats import GROUPINGS, Format

# The C++ decoder of each coded form.
LOSSLESS = {Format.PANEL_CODED4: "Coded4", Format.PANEL_CODED3: "Coded3"}
DECODERS = LOSSLESS | {format_: f"Grouped<{parameters(g)}>" for format_, g in GROUPINGS.items()}


def packed(weight: Weight, layout: Layout) -> str:
    """A matrix as the kernels get it."""
    index = layout.weight_index[weight]
    if weight in layout.coded:
        return f"*c.weight<CodedWeight>({index})"
    return f"c.weight<{tag(weight.dtype)}::word>({index})"


def panels_of(weight: Weight, layout: Layout, segments: tuple[int, ...] = ()) -> str:
    """The C++ type of a matrix's panels; segments: of its inputs."""
    form, per_word = layout.coded.get(weight), 2 if weight.dtype is DType.BF16 else 1
    words = f", Segments<{', '.join(str(n // per_word) for n in segments)}>" if segments else ""
    if form is None:
        return f"PlainPanels<{tag(weight.dtype)}, {weight.k}{words}>"
    return f"CodedPanels<{DECODERS[form]}, {weight.k}{words}>"
