"""A Program as one C++ translation unit: a struct whose run() calls one kernel template after another,
shapes as constants."""

from __future__ import annotations

import math
from functools import singledispatch

from firelane.backends.cpu.contract_source import contract_source
from firelane.backends.cpu.layout import LANES, PANEL, Layout
from firelane.contract import Causal, Chunk, Span, Window
from firelane.program.ops import (
    Attention,
    Embed,
    GatedLinear,
    Linear,
    Op,
    RMSNorm,
    RopeAndCache,
    Sample,
    SelectRows,
)
from firelane.program.values import DType, Rows, Value, Weight
from firelane.weights.formats import Format

# The C++ decoder of each lossless form.
DECODERS = {Format.PANEL_CODED4: "Coded4", Format.PANEL_CODED3: "Coded3"}

TEMPLATE = """\
// Generated from the program of {name}.
{contract}
#include "runtime.h"

namespace firelane {{

struct Model {{
  static constexpr int kOps = {ops};
  static constexpr std::size_t kScratchBytes = {scratch};

  static void run(Executor<Model>& e, Context& c, int thread) {{
    [[maybe_unused]] const int tokens = c.step.num_tokens, outputs = c.step.num_rows, logits = c.logit_rows;
{body}
  }}
}};

}}  // namespace firelane

FIRELANE_EXPORTS(firelane::Model)
"""


def generate(layout: Layout) -> str:
    """The source of `layout.program`: one call and one barrier for each op."""
    calls: list[str] = []
    scratch = ["std::size_t(64)"]
    for index, op in enumerate(layout.program.ops):
        calls.append(f"    {{ constexpr int op = {index}; {call(op, layout)} e.sync(op); }}")
        scratch += scratch_of(op, layout)
    sizes = ", ".join(dict.fromkeys(scratch))
    return TEMPLATE.format(
        name=layout.program.name,
        contract=contract_source(),
        ops=len(layout.program.ops),
        scratch=f"(std::max({{{sizes}}}) + 63) / 64 * 64",
        body="\n".join(calls),
    )


@singledispatch
def call(op: Op, layout: Layout) -> str:
    """The C++ statement that runs `op`."""
    raise NotImplementedError(f"no CPU kernel for {type(op).__name__}")


def scratch_of(op: Op, layout: Layout) -> list[str]:
    """C++ expressions of the bytes of scratch that a thread needs for `op`."""
    if op.products:
        used = [product.weight for product in op.products if product.weight in layout.coded]
        return [f"{_panels(weight, layout)}::kScratchBytes" for weight in used]
    if isinstance(op, Embed) and op.table in layout.coded:
        return [f"std::size_t({op.table.shape[1] * PANEL * 2})"]
    if isinstance(op, Attention):
        return [f"sizeof({_attention(op, layout)}::Scratch)"]
    if isinstance(op, Sample):
        return [f"kSampleScratchBytes<{op.logits.width}>"]
    return []


def _tag(dtype: DType) -> str:
    return "Bf16" if dtype is DType.BF16 else "F32"


def _rows(value: Value) -> str:
    return "tokens" if value.rows is Rows.TOKEN else "outputs"


def _at(value: Value, layout: Layout) -> str:
    kind = "float" if value.dtype is DType.F32 else "Bf16::act"
    return f"c.at<{kind}>({layout.value_index[value]})"


def _vector(weight: Weight | None, layout: Layout) -> str:
    return "nullptr" if weight is None else f"c.weight<float>({layout.weight_index[weight]})"


def _matrix(weight: Weight, layout: Layout) -> str:
    return f"c.weight<{_tag(weight.dtype)}::word>({layout.weight_index[weight]})"


def _panels(weight: Weight, layout: Layout) -> str:
    """The C++ type of a matrix's panels."""
    k = weight.shape[1]
    form = layout.coded.get(weight)
    if form is None:
        return f"PlainPanels<{_tag(weight.dtype)}, {k}>"
    return f"CodedPanels<{DECODERS[form]}, {k}>"


def _coded(weight: Weight, layout: Layout) -> str:
    return f"*c.weight<CodedWeight>({layout.weight_index[weight]})"


def _flag(value: object) -> str:
    return "false" if value is None else "true"


@call.register
def _(op: Embed, layout: Layout) -> str:
    vocab, width = op.table.shape
    sizes = f"{vocab}, {width}, {layout.stride(op.out)}"
    form = layout.coded.get(op.table)
    if form is not None:
        arguments = f"{_coded(op.table, layout)}, {_at(op.out, layout)}"
        return f"embed_coded<{DECODERS[form]}, {sizes}>(c, thread, {arguments});"
    shape = f"{_tag(op.table.dtype)}, {sizes}"
    return f"embed<{shape}>(c, thread, {_matrix(op.table, layout)}, {_at(op.out, layout)});"


@call.register
def _(op: RMSNorm, layout: Layout) -> str:
    shape = f"{_tag(op.out.dtype)}, {op.x.width}, {layout.stride(op.x)}, {layout.stride(op.out)}"
    arguments = f"{_at(op.x, layout)}, {_vector(op.weight, layout)}, {_float(op.eps)}, {_at(op.out, layout)}"
    return f"rms_norm<{shape}>(c, thread, {_rows(op.x)}, {arguments});"


@call.register
def _(op: SelectRows, layout: Layout) -> str:
    shape = f"{op.x.width}, {layout.stride(op.x)}, {layout.stride(op.out)}"
    return f"select_rows<{shape}>(c, thread, {_at(op.x, layout)}, {_at(op.out, layout)});"


def _product(op: Linear | GatedLinear, panels: int, store: str, layout: Layout) -> str:
    rows = "logits" if op == layout.program.head else _rows(op.x)
    read = _coded if op.weight in layout.coded else _matrix
    weights = f"{_panels(op.weight, layout)}{{{read(op.weight, layout)}}}"
    arguments = f"{rows}, {_at(op.x, layout)}, {weights}, {store}"
    return f"linear<{panels}, {layout.stride(op.x)}>(c, thread, op, {arguments});"


@call.register
def _(op: Linear, layout: Layout) -> str:
    residual = op.residual
    stride = layout.stride(op.out) if residual is None else layout.stride(residual)
    shape = f"{layout.stride(op.out)}, {stride}, {_flag(op.bias)}, {_flag(residual)}"
    source = "nullptr" if residual is None else _at(residual, layout)
    store = f"StoreF32<{shape}>{{{_at(op.out, layout)}, {_vector(op.bias, layout)}, {source}}}"
    product = _product(op, -(-op.out.width // PANEL), store, layout)
    return f"{_give_hidden(op.x, layout)} {product}" if op == layout.program.head else product


def _give_hidden(hidden: Value, layout: Layout) -> str:
    """Beside the head's product, which is the last op to read them."""
    shape = f"{_tag(hidden.dtype)}, {hidden.width}, {layout.stride(hidden)}"
    return f"give_hidden<{shape}>(c, thread, {_at(hidden, layout)});"


@call.register
def _(op: GatedLinear, layout: Layout) -> str:
    shape = f"{_tag(op.out.dtype)}, {layout.stride(op.out)}, {_flag(op.bias)}"
    store = f"StoreGated<{shape}>{{{_at(op.out, layout)}, {_vector(op.bias, layout)}}}"
    return _product(op, -(-op.out.width // LANES), store, layout)


@call.register
def _(op: RopeAndCache, layout: Layout) -> str:
    tag, s = _tag(op.out.dtype), op.shape
    shape = (
        f"{tag}, {s.heads}, {s.kv_heads}, {s.head_dim}, {_page(tag, layout)}, "
        f"{layout.stride(op.qkv)}, {layout.stride(op.out)}, {_flag(op.norm)}, {_flag(op.norm)}"
    )
    fields = [
        _at(op.qkv, layout),
        f"c.rotary[{layout.rotary_index[op.rotary]}]",
        _vector(op.norm and op.norm.q, layout),
        _vector(op.norm and op.norm.k, layout),
        _float(op.norm.eps if op.norm else 0.0),
        *_cache(op.layer, tag, layout),
        _at(op.out, layout),
    ]
    return f"Rope<{shape}>{{{', '.join(fields)}}}.run(c, thread);"


def _page(tag: str, layout: Layout) -> str:
    """Tokens of a page, and its elements."""
    return f"{layout.limits.block_size}, {layout.page_bytes} / sizeof({tag}::cache)"


def _cache(layer: int, tag: str, layout: Layout) -> list[str]:
    place = layout.cache_places[layer]
    arrays = [f"reinterpret_cast<{tag}::cache*>(c.pages + {at})" for at in (place.keys, place.values)]
    return [*arrays, str(place.group)]


def _span(span: Span) -> str:
    match span:
        case Causal():
            return "Causal"
        case Window(tokens):
            return f"SlidingWindow<{tokens}>"
        case Chunk(tokens):
            return f"AlignedChunk<{tokens}>"


def _attention(op: Attention, layout: Layout) -> str:
    s, tag = op.shape, _tag(op.out.dtype)
    return (
        f"Attention<{tag}, {s.heads}, {s.kv_heads}, {s.head_dim}, {_page(tag, layout)}, "
        f"{layout.stride(op.q)}, {layout.stride(op.out)}, {_span(op.span)}>"
    )


@call.register
def _(op: Attention, layout: Layout) -> str:
    scale = _float(op.scale * math.log2(math.e))
    fields = [_at(op.q, layout), *_cache(op.layer, _tag(op.out.dtype), layout), scale, _at(op.out, layout)]
    return f"{_attention(op, layout)}{{{', '.join(fields)}}}.run(c, thread, op);"


@call.register
def _(op: Sample, layout: Layout) -> str:
    shape = f"{op.logits.width}, {layout.stride(op.logits)}"
    return f"sample<{shape}>(c, thread, {_at(op.logits, layout)}, op);"


def _float(value: float) -> str:
    return f"float({value!r})"
