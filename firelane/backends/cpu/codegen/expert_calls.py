"""Products with experts' matrices as C++."""

from __future__ import annotations

from typing import NamedTuple

from firelane.backends.cpu.codegen.integer_calls import integer_panels, integer_rows, multiplies_integers
from firelane.backends.cpu.codegen.layout import LANES, PANEL, Layout
from firelane.backends.cpu.codegen.matrices import packed, panels_of
from firelane.backends.cpu.codegen.operands import at as _at
from firelane.backends.cpu.codegen.operands import at_or_null as _at_or_null
from firelane.backends.cpu.codegen.operands import flag as _flag
from firelane.backends.cpu.codegen.operands import number as _float
from firelane.backends.cpu.codegen.operands import rows as _rows
from firelane.backends.cpu.codegen.operands import tag as _tag
from firelane.backends.cpu.codegen.operands import truth as _truth
from firelane.backends.cpu.codegen.operands import vector as _vector
from firelane.program.ops import ExpertGatedLinear, ExpertLinear, Gate
from firelane.program.values import Value

PART_BYTES = 4 * PANEL * 4
"""Bytes that one slot gives to a sum of experts: panels walked together (csrc/products/experts.h)."""


def expert_row_scratch(op: ExpertGatedLinear | ExpertLinear, layout: Layout) -> int:
    """Bytes of scratch that a thread needs for each token row: the numbers of its slots, a copy of what is
    multiplied, and what the slots give until they are added."""
    parts = op.picks.width * PART_BYTES if isinstance(op, ExpertLinear) and op.segments else 0
    copy = layout.padded_bytes(op.weight.k, op.x.dtype)
    copy = layout.integer_row_bytes(op) if multiplies_integers(op, layout) else copy
    return 4 * op.picks.width + copy + parts


def gate_function(gate: Gate) -> tuple[str, str]:
    """The C++ type of a gate's function, and the function."""
    if gate.kind == "gelu_tanh":
        return "GeluTanh", "{}"
    if gate.kind == "gelu":
        return "Gelu", "{}"
    if gate.is_plain:
        return "Silu", "{}"
    numbers = ", ".join(map(_float, (gate.alpha, gate.limit, gate.up_offset)))
    return f"ShiftedSilu<{_truth(gate.limit)}>", f"{{{numbers}}}"


def expert_gated_linear(op: ExpertGatedLinear, layout: Layout) -> str:
    picks, gated, tag = op.picks.width, op.gate.halves == 2, _tag(op.out.dtype)
    n = op.weight.rows // op.gate.halves
    name, made = gate_function(op.gate) if gated else ("", "")
    kind, function = (f", {name}", [made]) if gated else ("", [])
    strides = f"{layout.stride(op.out)}, {_stride_if(op.shares, layout)}"
    shape = f"{tag}, {picks}, {n}, {strides}, {_flag(op.bias)}, {_flag(op.shares)}{kind}"
    fields = [_at(op.out, layout), _vector(op.bias, layout), _at_or_null(op.shares, layout), *function]
    store = f"StoreExpert{'Gated' if gated else 'Squared'}<{shape}>{{{', '.join(fields)}}}"
    return _expert_product("expert_gated_linear", op, 0, -(-n // (LANES if gated else PANEL)), store, layout)


def expert_linear(op: ExpertLinear, layout: Layout) -> str:
    picks, residual = op.picks.width, op.residual
    strides = ", ".join([str(layout.stride(op.out)), *(_stride_if(v, layout) for v in (residual, op.shares))])
    flags = ", ".join(_flag(part) for part in (op.bias, op.shares, residual))
    fields = [_at(op.out, layout), _vector(op.bias, layout)]
    fields += [_at_or_null(value, layout) for value in (op.shares, residual)]
    kind = f"StoreExpertSum<{picks}, {strides}, {flags}>"
    if op.segments:
        tree = f"Segments<{', '.join(map(str, op.segments))}>"
        kind = f"StoreExpertTree<{picks}, {layout.stride(op.picks)}, {strides}, {flags}, {tree}>"
        fields.append("c.parts[op].first")
    store = f"{kind}{{{', '.join(fields)}}}"
    return _expert_product("expert_linear", op, op.weight.k, -(-op.out.width // PANEL), store, layout)


def _expert_product(
    kernel: str, op: ExpertGatedLinear | ExpertLinear, slot: int, panels: int, store: str, layout: Layout
) -> str:
    """`slot`: elements from one slot of a row of x to the next."""
    w = op.weight
    rows = ExpertInputs(
        kind=_tag(w.dtype),
        panels=panels_of(w, layout),
        inputs=_at(op.x, layout),
        sizes=(
            w.k,
            layout.stride(op.picks),
            layout.stride(op.x),
            slot,
            layout.padded_stride(w.k, op.x.dtype),
        ),
    )
    if multiplies_integers(op, layout):
        size, slots = layout.integer_row_bytes(op), op.picks.width if slot else 1
        rows = ExpertInputs(
            kind="Int8Rows",
            panels=integer_panels(op, layout),
            inputs=integer_rows(layout),
            sizes=(size, layout.stride(op.picks), slots * size, size if slot else 0, size),
        )
    kind = f"ExpertRows<{rows.kind}, {w.matrices}, {op.picks.width}, {', '.join(map(str, rows.sizes))}>"
    arguments = f"{_rows(op.x)}, {_at(op.picks, layout)}, {rows.inputs}"
    matrices = f"{rows.panels}{{{packed(w, layout)}}}"
    return f"{kernel}<{panels}, {kind}>(c, thread, op, {arguments}, {matrices}, {store});"


class ExpertInputs(NamedTuple):
    """C++ of the rows that experts read. sizes: parameters of ExpertRows from K on."""

    kind: str
    panels: str
    inputs: str
    sizes: tuple[int, ...]


def _stride_if(value: Value | None, layout: Layout) -> str:
    return "0" if value is None else str(layout.stride(value))
