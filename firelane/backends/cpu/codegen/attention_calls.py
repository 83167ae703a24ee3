"""The C++ statements of ops that write the KV cache and read it."""

from __future__ import annotations

import math

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.codegen.operands import at, at_or_null, flag, number, tag, truth, vector
from firelane.contract import Bidirectional, Causal, Chunk, Span, Window
from firelane.program.cache_codes import CacheCode
from firelane.program.ops import (
    Attention,
    IndexCache,
    IndexTopK,
    LatentCache,
    RopeAndCache,
    Rotary,
    Temperature,
)

CODES = {CacheCode.INT8: "Int8", CacheCode.FP8: "Fp8"}
"""The C++ type of each code of the cache."""


def rope_and_cache(op: RopeAndCache, layout: Layout) -> str:
    kind, s = tag(op.out.dtype), op.shape
    cache = _cache_type(op.layer, kind, layout)
    shape = (
        f"{kind}, {cache}, {s.heads}, {s.kv_heads if op.keys else 0}, {s.head_dim}, {s.v_dim}, "
        f"{_page(cache, layout)}, "
        f"{layout.stride(op.qkv)}, {layout.stride(op.out)}, {_head_steps(op)}"
    )
    fields = [
        at(op.qkv, layout),
        _table(op.rotary, layout),
        _table(op.temperature, layout),
        vector(op.norm and op.norm.q, layout),
        vector(op.norm and op.norm.k, layout),
        number(op.norm.eps if op.norm else 0.0),
        *_cache(op.layer, cache, layout),
        at(op.out, layout),
    ]
    if op.places is not None:
        kind = f"Places<{layout.stride(op.places)}, {', '.join(map(str, op.axes))}>"
        shape, fields = f"{shape}, {kind}", [*fields, f"{kind}{{{at(op.places, layout)}}}"]
    return f"Rope<{shape}>{{{', '.join(fields)}}}.run(c, thread);"


def _head_steps(op: RopeAndCache) -> str:
    """Its HeadSteps."""
    norm = op.norm
    steps = {
        "kNormHeads": norm is not None and not norm.whole,
        "kNormWhole": norm is not None and norm.whole,
        "kNormWeights": norm is not None and norm.q is not None,
        "kNormValues": norm is not None and norm.values,
        "kRotate": op.rotary is not None,
        "kTemper": op.temperature is not None,
        "kPlace": op.places is not None,
    }
    return _steps(steps)


def _steps(steps: dict[str, bool]) -> str:
    return " | ".join(name for name, taken in steps.items() if taken) or "0"


def _table(table: Rotary | Temperature | None, layout: Layout) -> str:
    return "nullptr" if table is None else f"c.position_tables[{layout.table_index[table]}]"


def _cache_type(layer: int, kind: str, layout: Layout) -> str:
    """The C++ type of how the cache holds a layer."""
    code = layout.cache_places[layer].code
    return f"PlainCache<{kind}>" if code is None else f"CodedCache<{kind}, {CODES[code]}>"


def _page(cache: str, layout: Layout) -> str:
    """Tokens of a page, and its elements."""
    return f"{layout.limits.block_size}, {layout.page_bytes} / sizeof({cache}::element)"


def _cache(layer: int, cache: str, layout: Layout) -> list[str]:
    place = layout.cache_places[layer]
    arrays = [
        f"reinterpret_cast<{cache}::element*>(c.pages + {start})" for start in (place.keys, place.values)
    ]
    return [*arrays, str(place.group)]


def _span(span: Span) -> str:
    match span:
        case Causal():
            return "Causal"
        case Window(tokens):
            return f"SlidingWindow<{tokens}>"
        case Chunk(tokens):
            return f"AlignedChunk<{tokens}>"
        case Bidirectional(distance):
            return f"BothSides<{distance}>"


def attention_type(op: Attention, layout: Layout) -> str:
    s, kind = op.shape, tag(op.out.dtype)
    cache = _cache_type(op.layer, kind, layout)
    sizes = f"{_page(cache, layout)}, {layout.stride(op.q)}, {layout.stride(op.out)}, {_span(op.span)}"
    flags = f"{truth(op.softcap)}, {flag(op.sinks)}"
    if s.shared:
        longest = layout.program.max_model_len
        widths = f"{s.heads}, {s.head_dim}, {s.v_dim}"
        chosen = f"{op.indices.width}, {layout.stride(op.indices)}" if op.indices else "0, 0"
        return f"LatentAttention<{kind}, {cache}, {widths}, {sizes}, {flags}, {longest}, {chosen}>"
    return f"Attention<{kind}, {cache}, {s.heads}, {s.kv_heads}, {s.head_dim}, {s.v_dim}, {sizes}, {flags}>"


def attention(op: Attention, layout: Layout) -> str:
    log2e = math.log2(math.e)
    scale = op.scale / op.softcap if op.softcap else op.scale * log2e
    cache = _cache_type(op.layer, tag(op.out.dtype), layout)
    keys, values, group = _cache(op.layer, cache, layout)
    fields = [
        at(op.q, layout),
        *([keys, group] if op.shape.shared else [keys, values, group]),
        number(scale),
        number(op.softcap * log2e),
        vector(op.sinks, layout),
        *([at_or_null(op.indices, layout)] if op.shape.shared else []),
        at(op.out, layout),
    ]
    kernel = f"{attention_type(op, layout)}{{{', '.join(fields)}}}"
    if not op.shape.shared:
        return f"{kernel}.run(c, thread, op);"
    return f"const auto latent = {kernel}; latent.run(c, thread, op); e.sync(op); latent.merge(c, thread);"


def latent_cache(op: LatentCache, layout: Layout) -> str:
    kind, width = tag(op.out.dtype), op.q.width // op.heads
    strides = ", ".join(str(layout.stride(value)) for value in (op.q, op.latent, op.out))
    steps = {"kTurn": op.rotary is not None, "kWarm": op.temperature is not None}
    cache = _cache_type(op.layer, kind, layout)
    sizes = f"{op.heads}, {op.rank}, {op.rope_dim}, {width}, {_page(cache, layout)}, {strides}"
    keys, _, group = _cache(op.layer, cache, layout)
    fields = [
        at(op.q, layout),
        at(op.latent, layout),
        vector(op.norm, layout),
        number(op.eps),
        _table(op.rotary, layout),
        _table(op.temperature, layout),
        keys,
        group,
        at(op.out, layout),
    ]
    return f"Latent<{kind}, {cache}, {sizes}, {_steps(steps)}>{{{', '.join(fields)}}}.run(c, thread);"


def index_cache(op: IndexCache, layout: Layout) -> str:
    kind, cache = tag(op.out.dtype), _cache_type(op.layer, tag(op.out.dtype), layout)
    strides = ", ".join(str(layout.stride(value)) for value in (op.q, op.key, op.out))
    keys, _, group = _cache(op.layer, cache, layout)
    fields = [
        at(op.q, layout),
        at(op.key, layout),
        vector(op.norm, layout),
        vector(op.bias, layout),
        number(op.eps),
        _table(op.rotary, layout),
        keys,
        group,
        at(op.out, layout),
    ]
    sizes = f"{op.heads}, {op.key.width}, {_page(cache, layout)}, {strides}"
    return f"IndexCache<{kind}, {cache}, {sizes}>{{{', '.join(fields)}}}.run(c, thread);"


def index_top_k_type(op: IndexTopK, layout: Layout) -> str:
    kind, cache = tag(op.q.dtype), _cache_type(op.layer, tag(op.q.dtype), layout)
    strides = ", ".join(str(layout.stride(value)) for value in (op.q, op.head_weights, op.out))
    sizes = f"{op.shape.heads}, {op.shape.head_dim}, {_page(cache, layout)}, {strides}"
    return f"IndexTopK<{kind}, {cache}, {sizes}, {op.out.width}, {layout.program.max_model_len}>"


def index_top_k(op: IndexTopK, layout: Layout) -> str:
    keys, _, group = _cache(op.layer, _cache_type(op.layer, tag(op.q.dtype), layout), layout)
    fields = [at(op.q, layout), at(op.head_weights, layout), keys, group, at(op.out, layout)]
    kernel = f"{index_top_k_type(op, layout)}{{{', '.join(fields)}}}"
    run = "chosen.run(c, thread, op); e.sync(op); chosen.choose_shared(c, thread);"
    return f"const auto chosen = {kernel}; {run}"
