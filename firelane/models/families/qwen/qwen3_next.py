"""Qwen3-Next (Qwen, 2025): gated delta networks and attention with gates by turns, and experts of which one
is shared. Their projections are stored by key head; in GGUF files all but betas and decays as Qwen3.5 has
them.
"""

from __future__ import annotations

from firelane.models.blocks.blocks import Layer, embed, head, mlp
from firelane.models.blocks.decoder_config import read_gate, read_layers
from firelane.models.blocks.expert_config import read_expert_counts, read_sparse_layers
from firelane.models.blocks.experts import Experts, Routing, SharedExpert, moe
from firelane.models.blocks.gated_delta import BLOCK, read_next
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.models.heads.mtp import qwen_predictor
from firelane.program.ops import DeltaShape
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import Value

ARCHITECTURES = ("Qwen3NextForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder, mixers = read_next(config, name="qwen3_next")
    gate, layers = read_gate(config), read_layers(config)
    experts, sparse = _read_experts(config), read_sparse_layers(config, layers)
    width = config.integer("intermediate_size", 5632)
    x = embed(decoder)
    for layer, has_experts in zip(decoder.layers(layers), sparse, strict=True):
        x = mixers.add(layer, x, _projections)
        x = moe(layer, x, experts, gate=gate) if has_experts else mlp(layer, x, width, gate=gate)
    return decoder.program(head(decoder, x))


def predictor(config: ConfigReader) -> DraftHead:
    """A layer with attention and experts."""
    decoder, mixers = read_next(config, name="qwen3_next")
    gate, experts = read_gate(config), _read_experts(config)

    def block(layer: Layer, x: Value) -> Value:
        return moe(layer, mixers.attend(layer, x), experts, gate=gate)

    return qwen_predictor(decoder, block, 1)


def _read_experts(config: ConfigReader) -> Experts:
    count, picks = read_expert_counts(config, "num_experts", 512, 10)
    shared = config.integer("shared_expert_intermediate_size", 512)
    return Experts(
        count=count,
        picks=picks,
        width=config.integer("moe_intermediate_size", 512),
        routing=Routing(normalise=config.boolean("norm_topk_prob", True)),
        shared=SharedExpert(width=shared, tensor="mlp.shared_expert", gate="mlp.shared_expert_gate"),
    )


def _projections(layer: Layer, s: DeltaShape, inputs: int) -> tuple[tuple[Piece, ...], ...]:
    """By key head: its query, its key, values and gates of its heads; and their betas and decays."""
    ends = s.key_dim, 2 * s.key_dim, 2 * s.key_dim + s.group * s.value_dim
    pairs = _by_key_head(layer, "in_proj_qkvz", s, inputs, (*ends, 2 * ends[2] - ends[1]))
    rest = _by_key_head(layer, "in_proj_ba", s, inputs, (s.group, 2 * s.group))
    apart = (
        Piece(tensor=f"{layer.tensor(BLOCK)}.in_proj_{part}.weight", shape=(rows, inputs))
        for part, rows in (("qkv", s.qkv_width), ("z", s.value_width))
    )
    return (*pairs, *rest), (*apart, *rest)


def _by_key_head(layer: Layer, part: str, s: DeltaShape, inputs: int, ends: tuple[int, ...]) -> list[Piece]:
    """Pieces of a tensor that has ends[-1] rows for each key head: of each head the rows up to each end."""
    tensor, rows = f"{layer.tensor(BLOCK)}.{part}.weight", ends[-1]
    shape, view = (s.key_heads * rows, inputs), (s.key_heads, rows, inputs)
    return [
        Piece(tensor=tensor, shape=shape, view=view, take=(None, range(first, end)))
        for first, end in zip((0, *ends), ends, strict=False)
    ]
