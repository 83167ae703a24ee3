"""BERT (Devlin et al., 2018): an encoder with learned positions, whose norms stand behind each block."""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder, Layer, embed
from firelane.models.blocks.decoder_config import read_heads
from firelane.models.blocks.encoder import (
    Stream,
    add_table,
    attend_both_sides,
    encoder_program,
    normed,
    plain_mlp,
    pooled,
)
from firelane.models.blocks.encoder_config import read_longest, read_pool
from firelane.models.config.reader import ConfigReader, read_dtype
from firelane.program.ops import HeadShape
from firelane.program.program import Program
from firelane.program.values import DType

ARCHITECTURES = ("BertModel",)
LEFT_OUT = ("embeddings.position_ids", "pooler.")


def program(config: ConfigReader) -> Program:
    decoder, heads = _read(config), read_heads(config)
    width, positions = config.integer("intermediate_size"), config.integer("max_position_embeddings")
    layers, pool = config.integer("num_hidden_layers"), read_pool(config)
    x = embed(decoder)
    x = add_table(
        decoder, x, "embeddings.token_type_embeddings", config.integer("type_vocab_size", 2), place="segment"
    )
    x = add_table(decoder, x, "embeddings.position_embeddings", positions, place="position")
    stream = normed(decoder, x, "embeddings", "embeddings.LayerNorm")
    for number in range(layers):
        stream = _block(Layer(decoder, number, f"encoder.layer.{number}"), stream, heads, width)
    hidden = pooled(decoder, stream.exact, pool)
    return encoder_program(decoder, hidden, max_model_len=read_longest(config, positions), left_out=LEFT_OUT)


def _read(config: ConfigReader) -> Decoder:
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    config.choice("hidden_act", "gelu", among=("gelu",))
    config.ignore(
        "attention_probs_dropout_prob", "classifier_dropout", "gradient_checkpointing", "hidden_dropout_prob"
    )
    return Decoder(
        name="bert",
        vocab_size=config.integer("vocab_size"),
        max_model_len=config.integer("max_position_embeddings"),
        width=config.integer("hidden_size"),
        eps=config.number("layer_norm_eps", 1e-12),
        dtype=read_dtype(config),
        embeddings="embeddings.word_embeddings",
    )


def _block(layer: Layer, stream: Stream, heads: HeadShape, width: int) -> Stream:
    parts = [
        (layer.tensor(f"attention.self.{part}"), size)
        for part, size in (("query", heads.q_width), ("key", heads.k_width), ("value", heads.v_width))
    ]
    qkv = layer.value("qkv", sum(size for _, size in parts), DType.F32)
    qkv = layer.linear(stream.rounded, "qkv", parts, qkv, bias=True, add=None)
    attended = attend_both_sides(layer, qkv, heads)
    out = layer.stream("attention_sum")
    x = layer.add_to_stream(
        attended, "attention_out", "attention.output.dense", out, stream=stream.exact, bias=True, norm=None
    )
    stream = normed(layer.decoder, x, layer.name("attention"), layer.tensor("attention.output.LayerNorm"))
    up = [(layer.tensor("intermediate.dense"), width)]
    x = plain_mlp(layer, stream.rounded, stream.exact, up, "output.dense", bias=True)
    return normed(layer.decoder, x, layer.name("mlp"), layer.tensor("output.LayerNorm"))
