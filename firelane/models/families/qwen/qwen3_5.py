"""Qwen3.5, 3.6 and 3.8 (Qwen, 2026), their language models, dense or with experts: as Qwen3-Next, with each
projection in a tensor of its own.
"""

from __future__ import annotations

from firelane.models.blocks.blocks import Layer, embed, head, mlp
from firelane.models.blocks.decoder_config import read_gate, read_layers
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import ExpertNames, Experts, SharedExpert, moe
from firelane.models.blocks.gated_delta import BLOCK, read_next
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.models.heads.mtp import count_predictors, qwen_predictor
from firelane.program.ops import DeltaShape
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import Value

ARCHITECTURES = (
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)

NAMES = ExpertNames(transposed=False)


def program(config: ConfigReader) -> Program:
    decoder, mixers = read_next(config, name="qwen3_5")
    gate, layers = read_gate(config), read_layers(config)
    experts = _read_experts(config) if "Moe" in config.architecture else None
    width = 0 if experts else config.integer("intermediate_size", 12288)
    config.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "intermediate_size")
    config.only("mlp_only_layers", [])
    x = embed(decoder)
    for layer in decoder.layers(layers):
        x = mixers.add(layer, x, _projections)
        x = moe(layer, x, experts, gate=gate) if experts else mlp(layer, x, width, gate=gate)
    return decoder.program(head(decoder, x))


def predictor(config: ConfigReader) -> DraftHead:
    """Layers with attention."""
    count = count_predictors(config, "mtp_num_hidden_layers")
    config.only("mtp_use_dedicated_embeddings", False)
    decoder, mixers = read_next(config, name="qwen3_5")
    gate, experts = read_gate(config), _read_experts(config) if "Moe" in config.architecture else None
    width = 0 if experts else config.integer("intermediate_size", 12288)

    def block(layer: Layer, x: Value) -> Value:
        x = mixers.attend(layer, x)
        return moe(layer, x, experts, gate=gate) if experts else mlp(layer, x, width, gate=gate)

    return qwen_predictor(decoder, block, count)


def _read_experts(config: ConfigReader) -> Experts:
    count, picks = read_expert_counts(config, "num_experts", 256, 8)
    shared = config.integer("shared_expert_intermediate_size", 512)
    config.only("norm_topk_prob", True)
    config.only("decoder_sparse_step", 1)
    return Experts(
        count=count,
        picks=picks,
        width=config.integer("moe_intermediate_size", 512),
        names=NAMES,
        shared=SharedExpert(width=shared, tensor="mlp.shared_expert", gate="mlp.shared_expert_gate"),
    )


def _projections(layer: Layer, s: DeltaShape, inputs: int) -> tuple[tuple[Piece, ...]]:
    rows = {"qkv": s.qkv_width, "z": s.value_width, "b": s.heads, "a": s.heads}
    block = layer.tensor(BLOCK)
    pieces = (Piece(tensor=f"{block}.in_proj_{part}.weight", shape=(n, inputs)) for part, n in rows.items())
    return (tuple(pieces),)
