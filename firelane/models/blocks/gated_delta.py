"""Gated delta networks in the layers of Qwen3-Next and its successors (Yang et al., "Gated Delta Networks",
2024): three layers of four have one, the fourth has attention whose heads have gates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from firelane.models.blocks.blocks import Decoder, Layer, attention
from firelane.models.blocks.decoder_config import (
    FULL,
    read_decoder,
    read_heads,
    read_layer_types,
    read_layers,
)
from firelane.models.blocks.delta import Columns, Delta, delta, project, read_taps
from firelane.models.blocks.projections import AttentionTensors
from firelane.models.blocks.rope import MROPE, Rope, read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import DeltaShape, HeadShape
from firelane.program.recipes import Piece
from firelane.program.values import Value

LINEAR = "linear_attention"
BLOCK = "linear_attn"
GATED = AttentionTensors(gated=True)
Recipes = Callable[[Layer, DeltaShape, int], tuple[tuple[Piece, ...], ...]]
"""Rows of queries, keys, values, gates, betas and decays, of so many inputs: ways to make them."""


@dataclass(frozen=True, kw_only=True)
class Mixers:
    """First blocks of layers: of those in `full` attention, of the others delta networks."""

    heads: HeadShape
    rope: Rope
    shape: DeltaShape
    taps: int
    full: frozenset[int]

    def attend(self, layer: Layer, x: Value) -> Value:
        """x + attention to it."""
        return attention(layer, x, self.heads, self.rope, head_norm="each", tensors=GATED)

    def add(self, layer: Layer, x: Value, recipes: Recipes) -> Value:
        """x + the layer's first block."""
        if layer.number in self.full:
            return self.attend(layer, x)
        s = self.shape
        normed = layer.read(x, "delta", "input_layernorm")
        pieces, *others = recipes(layer, s, x.width)
        rows = project(layer, normed, "projections", pieces, tuple(others))
        gate, beta, decay = s.qkv_width, s.qkv_width + s.value_width, rows.width - s.decay_width
        how = Delta(
            shape=s,
            taps=self.taps,
            conv=((f"{BLOCK}.conv1d", s.qkv_width),),
            a_log=f"{BLOCK}.A_log",
            dt_bias=f"{BLOCK}.dt_bias",
            norm=f"{BLOCK}.norm.weight",
            out=f"{BLOCK}.out_proj",
        )
        return delta(
            layer,
            x,
            how,
            qkv=rows,
            decay=Columns(rows, decay),
            beta=Columns(rows, beta),
            gate=Columns(rows, gate),
        )


def read_next(config: ConfigReader, *, name: str) -> tuple[Decoder, Mixers]:
    """The decoder, whose norms' weights are stored less one, and the first blocks of its layers."""
    decoder, heads = read_decoder(config, name=name), read_heads(config, default_head_dim=256)
    config.only("attention_bias", False)
    config.only("attn_output_gate", True)
    config.only("mamba_ssm_dtype", "float32")
    config.choice("output_gate_type", "swish", among=("swish", "silu"))
    mixers = Mixers(
        heads=heads,
        rope=read_rope(config, head_dim=heads.head_dim, partial=0.25, beside=MROPE),
        shape=_read_shape(config),
        taps=read_taps(config, "linear_conv_kernel_dim"),
        full=_read_full(config),
    )
    return replace(decoder, norm_plus=1.0), mixers


def _read_shape(config: ConfigReader) -> DeltaShape:
    keys = config.integer("linear_num_key_heads", 16)
    heads = config.integer("linear_num_value_heads", 32)
    if heads % keys:
        why = f"it has to divide linear_num_value_heads = {heads}"
        raise config.refusal("linear_num_key_heads", keys, why)
    key_dim = config.integer("linear_key_head_dim", 128)
    value_dim = config.integer("linear_value_head_dim", 128)
    return DeltaShape(key_heads=keys, heads=heads, key_dim=key_dim, value_dim=value_dim)


def _read_full(config: ConfigReader) -> frozenset[int]:
    """Layers with attention."""
    layers = read_layers(config)
    types = read_layer_types(config, layers, other=LINEAR)
    each = config.integer("full_attention_interval", 4)
    full = [kind == FULL for kind in types] or [(i + 1) % each == 0 for i in range(layers)]
    if not any(full):
        why = "at least one layer with full attention is needed"
        raise config.refusal("layer_types" if types else "full_attention_interval", types or each, why)
    return frozenset(i for i, is_full in enumerate(full) if is_full)
