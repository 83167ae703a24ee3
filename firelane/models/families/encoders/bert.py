"""BERT (Devlin et al., 2018), RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2019): encoders
with learned positions, whose norms stand behind each block; and cross-encoders with their heads.
"""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder, Layer, embed
from firelane.models.blocks.decoder_config import read_heads
from firelane.models.blocks.encoder import (
    Stream,
    add_table,
    attend_both_sides,
    encoder_program,
    normed,
    output_linear,
    plain_mlp,
    pooled,
)
from firelane.models.blocks.encoder_config import count_labels, read_encoder, read_longest, read_pool
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import HeadShape
from firelane.program.program import Program
from firelane.program.values import DType, Value

ARCHITECTURES = (
    "BertModel",
    "BertForSequenceClassification",
    "RobertaModel",
    "RobertaForSequenceClassification",
    "XLMRobertaModel",
    "XLMRobertaForSequenceClassification",
)
LEFT_OUT = ("embeddings.position_ids", "pooler.")


def program(config: ConfigReader) -> Program:
    config.only("position_embedding_type", "absolute")
    is_bert = config.architecture.startswith("Bert")
    is_classifier = config.architecture.endswith("ForSequenceClassification")
    prefix = ("bert." if is_bert else "roberta.") if is_classifier else ""
    # Positions of RoBERTa are counted from behind that of padding.
    offset = 0 if is_bert else config.count("pad_token_id", 1) + 1
    rows = config.integer("max_position_embeddings")
    if rows <= offset:
        raise config.refusal("max_position_embeddings", rows, f"more than {offset} are needed")
    decoder = read_encoder(config, name="bert", eps=1e-12, embeddings=f"{prefix}embeddings.word_embeddings")
    x = _embedded(config, decoder, prefix, rows, offset)
    heads, width = read_heads(config), config.integer("intermediate_size")
    for number in range(config.integer("num_hidden_layers")):
        x = _block(Layer(decoder, number, f"{prefix}encoder.layer.{number}"), x, heads, width)
    if is_classifier:
        hidden = _classified(config, decoder, x, "bert.pooler.dense" if is_bert else "classifier.dense")
    else:
        hidden = pooled(decoder, x.exact, read_pool(config))
    longest, left_out = read_longest(config, rows - offset), tuple(prefix + name for name in LEFT_OUT)
    return encoder_program(decoder, hidden, max_model_len=longest, left_out=left_out)


def _embedded(config: ConfigReader, decoder: Decoder, prefix: str, rows: int, offset: int) -> Stream:
    x, tables = embed(decoder), f"{prefix}embeddings"
    types = config.integer("type_vocab_size", 2)
    x = add_table(decoder, x, f"{tables}.token_type_embeddings", types, place="segment")
    x = add_table(decoder, x, f"{tables}.position_embeddings", rows, place="position", offset=offset)
    return normed(decoder, x, "embeddings", f"{tables}.LayerNorm")


def _classified(config: ConfigReader, decoder: Decoder, x: Stream, dense: str) -> Value:
    first = pooled(decoder, x.exact, "cls")
    inner = output_linear(decoder, first, "dense", dense, decoder.width, tanh=True)
    last = "classifier" if dense.startswith("bert.") else "classifier.out_proj"
    return output_linear(decoder, inner, "classifier", last, count_labels(config))


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
