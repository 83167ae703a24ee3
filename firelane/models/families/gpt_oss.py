"""gpt-oss (OpenAI, 2025): experts with biases and a clamped gate, a sink for each head, windows in every
other layer, yarn."""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import AttentionScores, attention, embed, head
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_pattern
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import ExpertNames, Experts, Routing, moe
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import Gate
from firelane.program.program import Program

ARCHITECTURES = ("GptOssForCausalLM",)
NAMES = ExpertNames(router="mlp.router", transposed=True, interleaved=True)
SINKS = AttentionScores(sinks="self_attn.sinks")


def program(config: ConfigReader) -> Program:
    decoder, heads = read_decoder(config, name="gpt_oss"), read_heads(config, default_head_dim=64)
    if not (config.has("rope_parameters") or config.has("rope_scaling")):
        raise config.refusal("rope_parameters", None, "the way that positions are stretched has to be given")
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=150000.0)
    config.ignore("initial_context_length")  # its yarn section says the same
    window, pattern = Window(config.integer("sliding_window", 128)), read_pattern(config, default=2)
    bias = "qkvo" if config.boolean("attention_bias", True) else ""
    experts, gate = _read_experts(config), _read_gate(config)
    x = embed(decoder)
    for layer, slides in zip(decoder.layers(len(pattern)), pattern, strict=True):
        x = attention(layer, x, heads, rope, span=window if slides else CAUSAL, bias=bias, scores=SINKS)
        x = moe(layer, x, experts, gate=gate)
    return decoder.program(head(decoder, x))


def _read_gate(config: ConfigReader) -> Gate:
    read_gate(config)
    alpha, limit = config.number("swiglu_alpha", 1.702), config.number("swiglu_limit", 7.0)
    return Gate(alpha=alpha, limit=limit, up_offset=1.0)


def _read_experts(config: ConfigReader) -> Experts:
    count, picks = read_expert_counts(config, "num_local_experts", 128, 4)
    if config.integer("experts_per_token", picks) != picks:
        raise config.refusal(
            "experts_per_token", config.value("experts_per_token"), f"the other says {picks}"
        )
    return Experts(
        count=count,
        picks=picks,
        width=config.integer("intermediate_size"),
        routing=Routing(logit_bias=True),
        names=NAMES,
        bias=True,
    )
