"""Dense decoder: the transformer block that Llama, Mistral and Qwen share, built from a small frozen spec.

    x = embed(tokens)
    for each layer:   x = x + output(attention(rope(qkv(norm(x)))))
                      x = x + down(silu(gate(norm(x))) * up(norm(x)))
    logits = lm_head(norm(x))

Checkpoint tensors are named model.layers.{i}.…, as in transformers. The residual stream and all sums are F32;
what enters a matrix product has the matrices' dtype. Norm weights and biases are F32 vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firelane.program.ops import (
    Attention,
    Embed,
    GatedLinear,
    HeadShape,
    Linear,
    Op,
    RMSNorm,
    RopeAndCache,
    Rotary,
    Sample,
    SelectRows,
)
from firelane.program.program import Program
from firelane.program.values import DType, Rows, Value, Weight


@dataclass(frozen=True, kw_only=True)
class DenseSpec:
    """All that the dense families differ in. `windows` has one entry a layer (0: all positions)."""

    name: str
    vocab_size: int
    max_model_len: int
    hidden_size: int
    mlp_size: int
    heads: HeadShape
    rotary: Rotary
    windows: tuple[int, ...]
    norm_eps: float
    dtype: DType
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def dense_program(spec: DenseSpec) -> Program:
    """The Program of a dense decoder."""
    return Program(
        name=spec.name,
        vocab_size=spec.vocab_size,
        max_model_len=spec.max_model_len,
        ops=tuple(_decoder(spec)),
    )


def _decoder(spec: DenseSpec) -> Iterator[Op]:
    embedding = _matrix(spec, "embed", model("embed_tokens"), spec.vocab_size, spec.hidden_size)
    x = _residual(spec, "embedded")
    yield Embed(table=embedding, out=x)
    for layer in range(len(spec.windows)):
        middle, end = _residual(spec, f"layers.{layer}.middle"), _residual(spec, f"layers.{layer}.end")
        yield from _attention(spec, layer, x, middle)
        yield from _mlp(spec, layer, middle, end)
        x = end
    yield from _head(spec, x, embedding)


def _attention(spec: DenseSpec, layer: int, x: Value, out: Value) -> Iterator[Op]:
    s, at, dtype = spec.heads, f"layers.{layer}", spec.dtype
    q_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    tensors = tuple(model(f"{at}.self_attn.{p}_proj") for p in "qkv")
    parts = (q_width, kv_width, kv_width)
    normed = Value(f"{at}.attention_in", Rows.TOKEN, spec.hidden_size, dtype)
    qkv = Value(f"{at}.qkv", Rows.TOKEN, sum(parts), DType.F32)
    q = Value(f"{at}.q", Rows.TOKEN, q_width, dtype)
    attended = Value(f"{at}.attended", Rows.TOKEN, q_width, dtype)

    yield _norm(spec, x, normed, f"{at}.attention_norm", model(f"{at}.input_layernorm"))
    weight = _stacked(f"{at}.qkv", tensors, parts, spec.hidden_size, dtype)
    bias = _bias(f"{at}.qkv_bias", tensors, parts) if spec.qkv_bias else None
    yield Linear(x=normed, weight=weight, bias=bias, out=qkv)
    norms = [
        _vector(f"{at}.{p}_norm", model(f"{at}.self_attn.{p}_norm"), s.head_dim) if spec.qk_norm else None
        for p in "qk"
    ]
    yield RopeAndCache(
        qkv=qkv,
        layer=layer,
        shape=s,
        rotary=spec.rotary,
        q_norm=norms[0],
        k_norm=norms[1],
        norm_eps=spec.norm_eps,
        out=q,
    )
    yield Attention(
        q=q, layer=layer, shape=s, scale=s.head_dim**-0.5, window=spec.windows[layer], out=attended
    )
    tensor = model(f"{at}.self_attn.o_proj")
    weight = _matrix(spec, f"{at}.output", tensor, spec.hidden_size, q_width)
    bias = _bias(f"{at}.output_bias", (tensor,), (spec.hidden_size,)) if spec.output_bias else None
    yield Linear(x=attended, weight=weight, bias=bias, residual=x, out=out)


def _mlp(spec: DenseSpec, layer: int, x: Value, out: Value) -> Iterator[Op]:
    at, size, dtype = f"layers.{layer}", spec.mlp_size, spec.dtype
    tensors = (model(f"{at}.mlp.gate_proj"), model(f"{at}.mlp.up_proj"))
    normed = Value(f"{at}.mlp_in", Rows.TOKEN, spec.hidden_size, dtype)
    gated = Value(f"{at}.gated", Rows.TOKEN, size, dtype)

    yield _norm(spec, x, normed, f"{at}.mlp_norm", model(f"{at}.post_attention_layernorm"))
    weight = _stacked(f"{at}.gate_up", tensors, (size, size), spec.hidden_size, dtype)
    bias = _bias(f"{at}.gate_up_bias", tensors, (size, size)) if spec.mlp_bias else None
    yield GatedLinear(x=normed, weight=weight, bias=bias, out=gated)
    tensor = model(f"{at}.mlp.down_proj")
    weight = _matrix(spec, f"{at}.down", tensor, spec.hidden_size, size)
    bias = _bias(f"{at}.down_bias", (tensor,), (spec.hidden_size,)) if spec.mlp_bias else None
    yield Linear(x=gated, weight=weight, bias=bias, residual=x, out=out)


def _head(spec: DenseSpec, x: Value, embedding: Weight) -> Iterator[Op]:
    selected = Value("selected", Rows.OUTPUT, spec.hidden_size, DType.F32)
    normed = Value("final", Rows.OUTPUT, spec.hidden_size, spec.dtype)
    logits = Value("logits", Rows.OUTPUT, spec.vocab_size, DType.F32)
    yield SelectRows(x=x, out=selected)
    yield _norm(spec, selected, normed, "norm", model("norm"))
    untied = _matrix(spec, "lm_head", "lm_head", spec.vocab_size, spec.hidden_size)
    yield Linear(x=normed, weight=embedding if spec.tied_embeddings else untied, out=logits)
    yield Sample(logits=logits)


def model(tensor: str) -> str:
    return f"model.{tensor}"


def _residual(spec: DenseSpec, name: str) -> Value:
    return Value(name, Rows.TOKEN, spec.hidden_size, DType.F32)


def _norm(spec: DenseSpec, x: Value, out: Value, name: str, tensor: str) -> RMSNorm:
    return RMSNorm(x=x, weight=_vector(name, tensor, spec.hidden_size), eps=spec.norm_eps, out=out)


def _vector(name: str, tensor: str, width: int) -> Weight:
    return Weight(name=name, shape=(width,), dtype=DType.F32, tensors=(f"{tensor}.weight",), parts=(width,))


def _bias(name: str, tensors: tuple[str, ...], parts: tuple[int, ...]) -> Weight:
    names = tuple(f"{t}.bias" for t in tensors)
    return Weight(name=name, shape=(sum(parts),), dtype=DType.F32, tensors=names, parts=parts)


def _matrix(spec: DenseSpec, name: str, tensor: str, out_features: int, in_features: int) -> Weight:
    return _stacked(name, (tensor,), (out_features,), in_features, spec.dtype)


def _stacked(
    name: str, tensors: tuple[str, ...], parts: tuple[int, ...], in_features: int, dtype: DType
) -> Weight:
    names = tuple(f"{t}.weight" for t in tensors)
    return Weight(name=name, shape=(sum(parts), in_features), dtype=dtype, tensors=names, parts=parts)
