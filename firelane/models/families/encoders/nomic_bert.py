"""NomicBERT (Nussbaum et al., 2024): BERT with rotations in place of positions, and gates in its MLPs."""

from __future__ import annotations

from firelane.models.blocks.blocks import Layer, embed
from firelane.models.blocks.decoder_config import read_heads
from firelane.models.blocks.encoder import (
    Stream,
    add_table,
    attend_both_sides,
    encoder_program,
    normed,
    pooled,
)
from firelane.models.blocks.encoder_config import read_encoder, read_longest, read_pool
from firelane.models.blocks.rope import Rope, read_rope
from firelane.models.blocks.stacked import stacked_matrix
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import GatedLinear, HeadShape
from firelane.program.program import Program
from firelane.program.recipes import WeightLayout
from firelane.program.values import DType

ARCHITECTURES = ("NomicBertModel",)


def program(config: ConfigReader) -> Program:
    config.choice("hidden_act", "silu", among=("silu",))
    decoder = read_encoder(config, name="nomic_bert", eps=1e-12, embeddings="embeddings.word_embeddings")
    heads, width = read_heads(config), config.integer("intermediate_size")
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=1000.0)
    x, types = embed(decoder), config.integer("type_vocab_size", 2)
    x = add_table(decoder, x, "embeddings.token_type_embeddings", types, place="segment")
    stream = normed(decoder, x, "embeddings", "emb_ln")
    for number in range(config.integer("num_hidden_layers")):
        stream = _block(Layer(decoder, number, f"encoder.layers.{number}"), stream, heads, rope, width)
    hidden = pooled(decoder, stream.exact, read_pool(config))
    return encoder_program(decoder, hidden, max_model_len=read_longest(config, decoder.max_model_len))


def _block(layer: Layer, stream: Stream, heads: HeadShape, rope: Rope, width: int) -> Stream:
    decoder = layer.decoder
    qkv = layer.value("qkv", heads.q_width + heads.k_width + heads.v_width, DType.F32)
    parts = [(layer.tensor("attn.Wqkv"), qkv.width)]
    qkv = layer.linear(stream.rounded, "qkv", parts, qkv, bias=False, add=None)
    attended = attend_both_sides(layer, qkv, heads, rotary=rope.rotary)
    out, after = layer.stream("attention_sum"), stream.exact
    x = layer.add_to_stream(
        attended, "attention_out", "attn.out_proj", out, stream=after, bias=False, norm=None
    )
    stream = normed(decoder, x, layer.name("attention"), layer.tensor("norm1"))
    halves = [(layer.tensor("mlp.fc12"), width), (layer.tensor("mlp.fc11"), width)]
    weight = stacked_matrix(layer.name("gate_up"), halves, decoder.width, decoder.dtype, WeightLayout.GATED)
    gated = layer.value("gated", width, decoder.dtype)
    inner = decoder.add(GatedLinear(x=stream.rounded, weight=weight, out=gated))
    out, after = layer.stream("mlp_sum"), stream.exact
    x = layer.add_to_stream(inner, "mlp_down", "mlp.fc2", out, stream=after, bias=False, norm=None)
    return normed(decoder, x, layer.name("mlp"), layer.tensor("norm2"))
