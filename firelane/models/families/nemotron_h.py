"""Nemotron-H and Nemotron 3 (NVIDIA, 2025): each layer is one of Mamba-2, attention without positions, an MLP
without a gate, or experts of such MLPs, which may read a narrower latent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from firelane.models.blocks.blocks import Layer, Norms, attention, embed, head
from firelane.models.blocks.decoder_config import read_decoder, read_heads
from firelane.models.blocks.delta import read_taps
from firelane.models.blocks.experts import ExpertNames
from firelane.models.blocks.mamba import MambaTensors, mamba, read_step_limits
from firelane.models.blocks.projections import AttentionTensors
from firelane.models.blocks.squared import read_squared_experts, squared_mlp, squared_moe
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import StateShape
from firelane.program.program import Program
from firelane.program.values import Value

ARCHITECTURES = ("NemotronHForCausalLM",)
Mixer = Callable[[Layer, Value], Value]
NORM, BLOCK = "norm", "mixer"
KINDS = {
    "M": ("mamba", "linear_attention"),
    "*": ("attention", "full_attention"),
    "-": ("mlp",),
    "E": ("moe",),
}
NAMES = ExpertNames(
    router=f"{BLOCK}.gate",
    experts=f"{BLOCK}.experts",
    fused=("up_proj", "down_proj"),
    norm=NORM,
    transposed=False,
)
WITHOUT_EFFECT = (
    *("chunk_size", "expand", "moe_shared_expert_overlap", "mtp_hybrid_override_pattern"),
    *("mtp_layers_block_type", "num_hidden_layers", "num_logits_to_keep", "partial_rotary_factor"),
    *("rescale_prenorm_residual", "residual_in_fp32", "rope_theta", "time_step_floor", "time_step_max"),
    *("time_step_min", "time_step_rank", "use_mamba_kernels"),
)
COMPUTED = {
    "mamba_hidden_act": "silu",
    "mlp_hidden_act": "relu2",
    "mamba_ssm_cache_dtype": "float32",
    "mamba_proj_bias": False,
    "mlp_bias": False,
    "use_bias": False,
}


def program(config: ConfigReader) -> Program:
    eps = config.number("rms_norm_eps", config.number("norm_eps", config.number("layer_norm_epsilon", 1e-5)))
    decoder = replace(read_decoder(config, name="nemotron_h"), eps=eps, embeddings="model.embeddings")
    config.ignore(*WITHOUT_EFFECT)
    for key, value in COMPUTED.items():
        config.only(key, value)
    kinds = _read_kinds(config)
    if "-" not in kinds:
        config.ignore("intermediate_size")
    readers = {"M": _read_mamba, "*": _read_attention, "-": _read_mlp, "E": _read_moe}
    mixers = {kind: readers[kind](config) for kind in sorted(set(kinds))}
    x = embed(decoder)
    for layer, kind in zip(decoder.layers(len(kinds)), kinds, strict=True):
        x = mixers[kind](layer, x)
    return decoder.program(head(decoder, x, tensor="model.norm_f"))


def _read_kinds(config: ConfigReader) -> str:
    """A letter of KINDS for each layer. Raises UnsupportedModelError."""
    for key in ("layers_block_type", "layer_types"):
        if config.has(key):
            config.ignore("hybrid_override_pattern", "layers_block_type", "layer_types")
            letters = {name: kind for kind, names in KINDS.items() for name in names}
            types = config.strings(key)
            if not types or not letters.keys() >= set(types):
                raise config.refusal(key, types, f"known are {', '.join(letters)}")
            return "".join(letters[name] for name in types)
    key = "hybrid_override_pattern"
    pattern = config.string(key, "")
    if not pattern or not KINDS.keys() >= set(pattern):
        raise config.refusal(key, pattern, f"known are the letters {' '.join(KINDS)}")
    return pattern


def _read_mamba(config: ConfigReader) -> Mixer:
    heads, groups = config.integer("mamba_num_heads", 128), config.integer("n_groups", 8)
    if heads % groups:
        raise config.refusal("n_groups", groups, f"it has to divide mamba_num_heads = {heads}")
    head_dim, state_dim = config.integer("mamba_head_dim", 64), config.integer("ssm_state_size", 128)
    shape = StateShape(heads=heads, groups=groups, head_dim=head_dim, state_dim=state_dim)
    taps, bias = read_taps(config, "conv_kernel"), config.boolean("use_conv_bias", True)
    limits, tensors = read_step_limits(config), MambaTensors(block=BLOCK, norm=NORM)
    return lambda layer, x: mamba(layer, x, shape, taps=taps, bias=bias, limits=limits, tensors=tensors)


def _read_attention(config: ConfigReader) -> Mixer:
    heads = read_heads(config, default_head_dim=config.integer("attention_head_dim", 128))
    bias = config.boolean("attention_bias", False)
    if config.has("sliding_window"):
        raise config.refusal("sliding_window", config.value("sliding_window"), "only null is supported")
    config.ignore("sliding_window")
    tensors, norms = AttentionTensors(block=BLOCK), Norms(before=NORM)
    return lambda layer, x: attention(
        layer, x, heads, None, bias="qkvo" if bias else "", norms=norms, tensors=tensors
    )


def _read_mlp(config: ConfigReader) -> Mixer:
    width = config.integer("intermediate_size")
    return lambda layer, x: squared_mlp(layer, layer.read(x, "mlp", NORM), x, width, BLOCK)


def _read_moe(config: ConfigReader) -> Mixer:
    how = read_squared_experts(config, NAMES, BLOCK)
    return lambda layer, x: squared_moe(layer, x, how)
