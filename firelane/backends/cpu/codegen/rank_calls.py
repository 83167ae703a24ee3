"""C++ calls of what ranks do together: sums, rows and columns of all, and values from stage to stage."""

from __future__ import annotations

from collections.abc import Mapping

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.codegen.operands import at, at_or_null, flag, number, rows, truth, vector
from firelane.program.ops import (
    AllReduce,
    AwaitCache,
    Gather,
    GatherColumns,
    GatherRows,
    Receive,
    Send,
    TakeRows,
)
from firelane.program.values import Value


def all_reduce(op: AllReduce, layout: Layout) -> str:
    strides = ", ".join(str(layout.stride(value)) for value in (op.x, op.out, op.residual or op.out))
    flags = ", ".join([flag(op.bias), flag(op.residual), truth(op.scale != 1.0)])
    meeting = layout.meetings[op]
    fields = [
        f"c.shared_rows<float>({meeting % 2})",
        "c.shared_apart / sizeof(float)",
        at(op.out, layout),
        vector(op.bias, layout),
        at_or_null(op.residual, layout),
        number(op.scale),
    ]
    kernel = f"AllReduce<{op.ranks}, {op.out.width}, {strides}, {flags}>"
    return f"{kernel}{{{', '.join(fields)}}}.run(c, thread, {meeting}, {rows(op.x)});"


def gather(op: Gather, layout: Layout) -> str:
    """Each rank has written its columns where the first one reads all of them."""
    arguments = f"{layout.meetings[op]}, {_bytes(op.x, layout)}, logits"
    return f"gather<{layout.row_bytes(op.x)}>(c, thread, {arguments});"


def take_rows(op: TakeRows, layout: Layout) -> str:
    arguments = f"{_bytes(op.x, layout)}, {_bytes(op.out, layout)}"
    return f"take_rows<{layout.row_bytes(op.x)}>(c, thread, {arguments});"


def await_cache(op: AwaitCache, layout: Layout) -> str:
    return f"meet(c, thread, {layout.meetings[op]});"


def gather_rows(op: GatherRows, layout: Layout) -> str:
    meeting = layout.meetings[op]
    arguments = f"{meeting}, c.shared_rows<std::uint8_t>({meeting % 2}), {_bytes(op.out, layout)}"
    return f"gather_rows<{layout.row_bytes(op.x)}>(c, thread, {arguments});"


def gather_columns(op: GatherColumns, layout: Layout) -> str:
    meeting, size = layout.meetings[op], layout.element_bytes(op.x.dtype)
    residual = 0 if op.residual is None else layout.stride(op.residual)
    sizes = layout.row_bytes(op.x), layout.row_bytes(op.out), op.slots, residual
    shape = ", ".join(map(str, [*sizes, *(width * size for width in op.widths)]))
    places = f"c.shared_rows<std::uint8_t>({meeting % 2}), {_bytes(op.out, layout)}"
    return f"gather_columns<{shape}>(c, thread, {meeting}, {places}, {at_or_null(op.residual, layout)});"


def send(op: Send, layout: Layout) -> str:
    return f"send<{layout.row_bytes(op.x)}, {layout.sent[op.x]}>(c, thread, {_bytes(op.x, layout)});"


def receive(op: Receive, layout: Layout) -> str:
    shape = f"{layout.row_bytes(op.out)}, {layout.received[op.out]}"
    return f"receive<{shape}>(c, thread, {_bytes(op.out, layout)});"


def mail_parts(values: Mapping[Value, int], layout: Layout) -> str:
    """C++ list of the values that stages hand on; one of no bytes where there are none."""
    return ", ".join(f"{{{layout.row_bytes(v)}, {before}}}" for v, before in values.items()) or "{0, 0}"


def _bytes(value: Value, layout: Layout) -> str:
    return f"c.at<std::uint8_t>({layout.value_index[value]})"
