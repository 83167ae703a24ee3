"""Low-rank adapters as C++. Sources of programs without adapters know nothing of them."""

from __future__ import annotations

from firelane.backends.cpu.codegen.adapter_layout import AdaptedPlace
from firelane.backends.cpu.codegen.feature_calls import BARRIER
from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.codegen.operands import at, at_or_null, flag, number, rows, tag, truth
from firelane.program.ops import Adapted, LoraExpand, LoraShrink
from firelane.program.values import Rows, Value

INCLUDE = '#include "products/lora.h"\n'


def lora_shrink(op: LoraShrink, layout: Layout) -> str:
    adapted = op.adapted
    sizes = f"{tag(op.x.dtype)}, {adapted.k}, {len(adapted.parts)}, {adapted.rank}"
    shape = f"{sizes}, {layout.stride(op.x)}, {layout.stride(op.out)}"
    arguments = f"{_rows(op.x)}, {_table(adapted, layout)}, {at(op.x, layout)}, {at(op.out, layout)}"
    return f"lora_shrink<{shape}>(c, thread, {arguments}); {BARRIER}"


def lora_expand(op: LoraExpand, layout: Layout) -> str:
    adapted, place = op.adapted, _place(op.adapted, layout)
    strides = ", ".join(str(layout.stride(value)) for value in (op.y, op.residual or op.out, op.out))
    sizes = f"{adapted.n}, {len(adapted.parts)}, {adapted.rank}, {place.a_words}"
    shape = f"{sizes}, {strides}, {flag(op.residual)}, {truth(op.scale != 1.0)}"
    tiles = f"c.at<std::int32_t>({layout.adapters_index + 3}) + {place.tiles_at}"
    arguments = [
        _rows(op.y),
        _table(adapted, layout),
        f"LoraTiles{{{tiles}, {tiles} + {place.num_blocks + 1}}}",
        at(op.y, layout),
        at_or_null(op.residual, layout),
        number(op.scale),
        at(op.out, layout),
    ]
    return f"lora_expand<{shape}>(c, thread, {', '.join(arguments)}); {BARRIER}"


def delta_store(delta: Value, store: str, width: int, layout: Layout) -> str:
    """The store of a gated product that adds to its sums before it calls their function."""
    return f"with_delta<{layout.stride(delta)}, {width}>({at(delta, layout)}, {store})"


def _rows(value: Value) -> str:
    """Number of rows, and the slot of each."""
    slots = "c.step.row_slot" if value.rows is Rows.OUTPUT else "c.token_slot"
    return f"{rows(value)}, {slots}"


def _table(adapted: Adapted, layout: Layout) -> str:
    place, index, adapters = _place(adapted, layout), layout.adapters_index, layout.adapters
    fields = [
        f"c.at<std::int32_t>({index})",
        f"c.at<LoraHead>({index + 1}) + {place.head}",
        str(adapters.parts),
        f"c.at<std::uint8_t>({index + 2}) + {place.begin}",
        str(adapters.place_bytes),
    ]
    return f"LoraTable{{{', '.join(fields)}}}"


def _place(adapted: Adapted, layout: Layout) -> AdaptedPlace:
    return layout.adapters.places[adapted.weight]
