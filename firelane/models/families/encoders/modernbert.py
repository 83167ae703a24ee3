"""ModernBERT (Warner et al., 2024): an encoder with rotations, most of whose layers see a few positions on
both sides, and whose MLPs have gates; and cross-encoders with its head.
"""

from __future__ import annotations

from firelane.contract.span import Bidirectional
from firelane.models.blocks.blocks import Decoder, Layer, embed, gated_mlp
from firelane.models.blocks.decoder_config import FULL, SLIDING, read_heads
from firelane.models.blocks.encoder import (
    EVERYWHERE,
    attend_both_sides,
    encoder_program,
    normed,
    normed_in,
    output_linear,
    pooled,
)
from firelane.models.blocks.encoder_config import count_labels, read_encoder, read_longest, read_pool
from firelane.models.blocks.rope import Rope, read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import GELU, Gated, HeadShape, PoolKind
from firelane.program.program import Program
from firelane.program.values import DType, Rows, Value

ARCHITECTURES = ("ModernBertModel", "ModernBertForSequenceClassification")
THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
POOLS: dict[str, PoolKind] = {"cls": "cls", "mean": "mean"}
WITHOUT_EFFECT = (
    *("classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias"),
    *("deterministic_flash_attn", "embedding_dropout", "initializer_cutoff_factor", "layer_norm_eps"),
    *("mlp_dropout", "position_embedding_type", "reference_compile", "repad_logits_with_grad"),
    *("sparse_pred_ignore_index", "sparse_prediction"),
)


def program(config: ConfigReader) -> Program:
    for key in ("attention_bias", "mlp_bias", "norm_bias"):
        config.only(key, False)
    config.choice("hidden_activation", "gelu", among=("gelu",))
    is_classifier = config.architecture == "ModernBertForSequenceClassification"
    prefix = "model." if is_classifier else ""
    table = f"{prefix}embeddings.tok_embeddings"
    decoder = read_encoder(config, name="modernbert", eps=1e-5, embeddings=table, eps_key="norm_eps")
    heads, width = read_heads(config), config.integer("intermediate_size")
    kinds, spans = _read_kinds(config), _read_spans(config)
    ropes = {kind: _read_rope(config, kind, heads) for kind in sorted(set(kinds))}
    stream = normed(decoder, embed(decoder), "embeddings", f"{prefix}embeddings.norm", bias=False)
    x = stream.exact
    for number, kind in enumerate(kinds):
        layer = Layer(decoder, number, f"{prefix}layers.{number}")
        read = normed_in(layer, x, "attention", "attn_norm") if number else stream.rounded
        x = _attention(layer, read, x, heads, ropes[kind], spans[kind])
        read = normed_in(layer, x, "mlp", "mlp_norm")
        inner, out = (
            gated_mlp(layer, read, width, gate=GELU, before=None, fused="Wi"),
            layer.stream("mlp_sum"),
        )
        x = layer.add_to_stream(inner, "mlp_down", "mlp.Wo", out, stream=x, bias=False, norm=None)
    x = normed(decoder, x, "final", f"{prefix}final_norm", bias=False).exact
    hidden = _classified(config, decoder, x) if is_classifier else pooled(decoder, x, read_pool(config))
    config.ignore(*WITHOUT_EFFECT)
    return encoder_program(decoder, hidden, max_model_len=read_longest(config, decoder.max_model_len))


def _read_kinds(config: ConfigReader) -> list[str]:
    """FULL or SLIDING for each layer."""
    count, every = config.integer("num_hidden_layers"), config.integer("global_attn_every_n_layers", 3)
    if not config.has("layer_types"):
        return [SLIDING if number % every else FULL for number in range(count)]
    kinds = config.strings("layer_types")
    if len(kinds) != count or not set(kinds) <= {FULL, SLIDING}:
        raise config.refusal("layer_types", kinds, f"{count} are needed, each {FULL} or {SLIDING}")
    return kinds


def _read_spans(config: ConfigReader) -> dict[str, Bidirectional]:
    return {FULL: EVERYWHERE, SLIDING: Bidirectional(config.integer("local_attention", 128) // 2)}


def _read_rope(config: ConfigReader, kind: str, heads: HeadShape) -> Rope:
    theta = config.number(*THETAS[kind])
    return read_rope(config, head_dim=heads.head_dim, layer_type=kind, default_theta=theta)


def _attention(
    layer: Layer, read: Value, x: Value, heads: HeadShape, rope: Rope, span: Bidirectional
) -> Value:
    qkv = layer.value("qkv", heads.q_width + heads.k_width + heads.v_width, DType.F32)
    qkv = layer.linear(read, "qkv", [(layer.tensor("attn.Wqkv"), qkv.width)], qkv, bias=False, add=None)
    attended = attend_both_sides(layer, qkv, heads, rotary=rope.rotary, span=span)
    out = layer.stream("attention_sum")
    return layer.add_to_stream(attended, "attention_out", "attn.Wo", out, stream=x, bias=False, norm=None)


def _classified(config: ConfigReader, decoder: Decoder, x: Value) -> Value:
    config.choice("classifier_activation", "gelu", among=("gelu",))
    one = pooled(decoder, x, POOLS[config.choice("classifier_pooling", "cls", among=tuple(POOLS))])
    bias = config.boolean("classifier_bias", False)
    dense = output_linear(decoder, one, "dense", "head.dense", decoder.width, bias=bias)
    out = Value("dense_active", Rows.OUTPUT, decoder.width, DType.F32)
    active = decoder.add(Gated(x=dense, gate=dense, act="normal", out=out))
    head = normed(decoder, active, "head", "head.norm", bias=False)
    return output_linear(decoder, head.exact, "classifier", "classifier", count_labels(config))
