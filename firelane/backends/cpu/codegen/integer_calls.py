"""Products of integers as C++: which ops have them, their panels, and how their inputs are rounded."""

from __future__ import annotations

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.codegen.operands import at, rows, truth
from firelane.program.integer_products import row_group
from firelane.program.ops import ExpertLinear, Op
from firelane.weights.formats.codebooks import Codebook
from firelane.weights.formats.formats import Grouping, Heads

HEADS = {
    Heads.F32: "kF32",
    Heads.F16: "kF16",
    Heads.BF16: "kBf16",
    Heads.LEVELS: "kLevels",
    Heads.POWER: "kPower",
}
BOOKS = {Codebook.INT: "kInt", Codebook.E2M1: "kE2m1", Codebook.IQ4: "kIq4", Codebook.E4M3: "kE4m3"}


def parameters(g: Grouping) -> str:
    """C++ parameters of all that reads codes of such a format."""
    return f"{g.bits}, {g.group}, {truth(g.minima)}, Heads::{HEADS[g.heads]}, Book::{BOOKS[g.book]}"


def integer_codes(grouping: Grouping) -> str:
    """The C++ type of codes that are multiplied as they are."""
    return f"IntegerCodes<{parameters(grouping)}>"


def multiplies_integers(op: Op, layout: Layout) -> bool:
    return layout.row_unit(op) is not None


def integer_panels(op: Op, layout: Layout) -> str:
    """The C++ type of the matrix of an op that multiplies integers."""
    weight, segments = op.products[0].weight, layout.input_segments(op)
    grouping = layout.coded[weight].grouping
    assert grouping is not None
    group = row_group(weight.k, segments)
    units = [str(width // min(group, grouping.group)) for width in segments]
    summed = f", Segments<{', '.join(units)}>" if units else ""
    return f"Int8Panels<{integer_codes(grouping)}, {weight.k}, {group}{summed}>"


def integer_rows(layout: Layout) -> str:
    """The place of the rounded inputs of an op."""
    return f"c.at<std::uint8_t>({layout.integer_rows_index})"


def rounding(op: Op, layout: Layout) -> str:
    """The C++ statement that rounds the inputs of an op."""
    kind, x = integer_panels(op, layout), op.products[0].x
    slots = op.picks.width if isinstance(op, ExpertLinear) else 1
    count = "logits" if op == layout.program.head else rows(x)
    shape = f"{slots}, {layout.stride(x)}, {layout.integer_row_bytes(op)}"
    return f"{kind}::round_rows<{shape}>(c, thread, {count}, {at(x, layout)}, {integer_rows(layout)});"
