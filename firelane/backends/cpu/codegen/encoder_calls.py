"""The C++ statements of ops that encoders alone have, and of rows that come from one."""

from __future__ import annotations

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.codegen.operands import at, at_or_null, flag, number, rows, tag, truth, vector
from firelane.program.ops import AddEmbedding, GiveHidden, LayerNorm, MergeRows, Pool

POOLS = {"mean": "kMean", "max": "kMax", "cls": "kFirst", "last": "kLast"}


def layer_norm(op: LayerNorm, layout: Layout) -> str:
    copy = op.rounded or op.out
    strides = ", ".join(str(layout.stride(value)) for value in (op.x, op.out, copy))
    shape = f"{tag(op.out.dtype)}, {tag(copy.dtype)}, {op.x.width}, {strides}, {flag(op.bias)}"
    fields = [
        at(op.x, layout),
        vector(op.weight, layout),
        vector(op.bias, layout),
        number(op.eps),
        at(op.out, layout),
        at_or_null(op.rounded, layout),
    ]
    kernel = f"LayerNorm<{shape}, {flag(op.rounded)}>"
    return f"{kernel}{{{', '.join(fields)}}}.run(c, thread, {rows(op.x)});"


def add_embedding(op: AddEmbedding, layout: Layout) -> str:
    strides = f"{layout.stride(op.x)}, {layout.stride(op.out)}"
    shape = f"{op.x.width}, {strides}, {op.offset}, {op.rows}, {truth(op.place == 'segment')}"
    values = f"{at(op.x, layout)}, {vector(op.table, layout)}, {at(op.out, layout)}"
    return f"add_embedding<{shape}>(c, thread, {values});"


def merge_rows(op: MergeRows, layout: Layout) -> str:
    values = (op.x, op.rows, op.places, op.out)
    shape = ", ".join(str(n) for n in (op.x.width, *map(layout.stride, values)))
    places = ", ".join(at(value, layout) for value in values)
    return f"merge_rows<{shape}, {truth(op.adds)}>(c, thread, {places});"


def pool(op: Pool, layout: Layout) -> str:
    shape = f"{op.x.width}, {layout.stride(op.x)}, {layout.stride(op.out)}, PoolKind::{POOLS[op.kind]}"
    return f"pool<{shape}>(c, thread, {at(op.x, layout)}, {at(op.out, layout)});"


def give_hidden(op: GiveHidden, layout: Layout) -> str:
    return f"give_hidden<F32, {op.x.width}, {layout.stride(op.x)}>(c, thread, {at(op.x, layout)});"
