"""The architectures of GGUF files that are served: what each is in config.json, and how its tensors lie.

After llama.cpp's converter (github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py): which keys it writes, what
it leaves to be known, and what it changes in the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firelane.models.gguf.metadata import Metadata

Config = dict[str, Any]
NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm")


def _nothing(_: Metadata) -> Config:
    return {}


@dataclass(frozen=True, kw_only=True)
class Family:
    """architecture: in config.json. config: its keys beside those that all have. names: of tensors of a
    layer, where they differ from those of most. heads_in_pairs: whether rows of q and k are stored for a
    rotation of neighbours, although the model rotates halves. norm_plus: what was added to the weights of
    norms. float32: parts of names of matrices that the model multiplies in float32."""

    architecture: str
    model_type: str
    config: Callable[[Metadata], Config] = _nothing
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    heads_in_pairs: bool = False
    norm_plus: float = 0.0
    float32: frozenset[str] = frozenset()


def find(metadata: Metadata) -> Family | None:
    """None for an architecture that is not served."""
    name = metadata.architecture
    if name == "llama" and metadata.integer("expert_count", 0):
        name = "llama with experts"
    if name == "olmo2" and metadata.has("attention.sliding_window"):
        name = "olmo2 with windows"
    return FAMILIES.get(name)


def served() -> list[str]:
    """Names of all architectures."""
    return sorted({name.split()[0] for name in FAMILIES})


def _attention_bias(metadata: Metadata) -> Config:
    return {"attention_bias": metadata.layer_has("attn_q.bias")}


def _experts(metadata: Metadata, count: str, picks: str = "num_experts_per_tok") -> Config:
    return {count: metadata.integer("expert_count"), picks: metadata.integer("expert_used_count")}


def _windows(metadata: Metadata, default_each: int) -> Config:
    """Of layers of which all but each n-th have a window."""
    flags, layers = metadata.flags("attention.sliding_window_pattern"), metadata.integer("block_count")
    slides = flags or [(layer + 1) % default_each != 0 for layer in range(layers)]
    return {
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": ["sliding_attention" if s else "full_attention" for s in slides[:layers]],
    }


def _llama(metadata: Metadata) -> Config:
    return _attention_bias(metadata) | {"mlp_bias": metadata.layer_has("ffn_gate.bias")}


def _mixtral(metadata: Metadata) -> Config:
    return _experts(metadata, "num_local_experts")


def _qwen2_moe(metadata: Metadata) -> Config:
    return _experts(metadata, "num_experts") | {
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", default=False),
    }


def _qwen3_moe(metadata: Metadata) -> Config:
    return _experts(metadata, "num_experts") | {
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", default=True),
    }


def _gemma2(metadata: Metadata) -> Config:
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.integer("attention.sliding_window"),
        "query_pre_attn_scalar": _query_scalar(metadata, largest=46),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 30.0),
    }


def _query_scalar(metadata: Metadata, *, largest: int) -> int:
    """The size of a head; in the family's largest model (of so many layers) the hidden size over the number
    of heads. Files do not say it."""
    if metadata.integer("block_count") == largest:
        return metadata.integer("embedding_length") // metadata.same("attention.head_count")
    return metadata.integer("attention.key_length")


def _gemma3(metadata: Metadata) -> Config:
    """The rotation of full layers is the file's; that of the others is never stretched."""
    return _windows(metadata, 6) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata, largest=62),
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10000.0),
    }


def _phi3(metadata: Metadata) -> Config:
    found: Config = {}
    if metadata.has("attention.sliding_window"):
        window = metadata.integer("attention.sliding_window")
        found["sliding_window"] = window or None
    if metadata.has("rope.scaling.original_context_length"):
        found["original_max_position_embeddings"] = metadata.integer("rope.scaling.original_context_length")
    return found


def _granite(metadata: Metadata) -> Config:
    return _llama(metadata) | {
        "attention_multiplier": metadata.number("attention.scale"),
        "embedding_multiplier": metadata.number("embedding_scale"),
        "residual_multiplier": metadata.number("residual_scale"),
        "logits_scaling": metadata.number("logit_scale"),
    }


def _exaone4(metadata: Metadata) -> Config:
    return _windows(metadata, 4) if metadata.has("attention.sliding_window") else {"sliding_window": None}


def _seed_oss(metadata: Metadata) -> Config:
    return _attention_bias(metadata) | {"attention_out_bias": metadata.layer_has("attn_output.bias")}


def _glm4_moe(metadata: Metadata) -> Config:
    return _experts(metadata, "n_routed_experts") | {
        "attention_bias": metadata.layer_has("attn_q.bias"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "n_shared_experts": metadata.integer("expert_shared_count"),
        "first_k_dense_replace": metadata.integer("leading_dense_block_count"),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        "norm_topk_prob": metadata.flag("expert_weights_norm", default=True),
        "n_group": metadata.integer("expert_group_count", 1),
        "topk_group": metadata.integer("expert_group_used_count", 1),
        "use_qk_norm": metadata.layer_has("attn_q_norm.weight"),
    }


def _minimax_m2(metadata: Metadata) -> Config:
    """All MLPs are experts, and their width is the config's only one."""
    return _experts(metadata, "num_local_experts") | {
        "intermediate_size": metadata.integer("expert_feed_forward_length"),
        "rotary_dim": metadata.integer("rope.dimension_count"),
    }


def _ernie4_5_moe(metadata: Metadata) -> Config:
    return _experts(metadata, "moe_num_experts", "moe_k") | {
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "moe_num_shared_experts": metadata.integer("expert_shared_count", 0),
        "moe_layer_start_index": metadata.integer("leading_dense_block_count"),
        "moe_layer_interval": metadata.integer("interleave_moe_layer_step", 1),
    }


GEMMA_NAMES = {"ffn_norm": "pre_feedforward_layernorm"}
GLM_NAMES = {
    "ffn_up": "mlp.gate_up_proj",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
SPARSE_BLOCK_NAMES = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
    "exp_probs_b": "block_sparse_moe.e_score_correction_bias",
}
QWEN2_MOE_NAMES = {f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
ROUTER = frozenset(["ffn_gate_inp"])
FAMILIES: dict[str, Family] = {
    "llama": Family(architecture="LlamaForCausalLM", model_type="llama", config=_llama, heads_in_pairs=True),
    "llama with experts": Family(
        architecture="MixtralForCausalLM",
        model_type="mixtral",
        config=_mixtral,
        names=SPARSE_BLOCK_NAMES,
        heads_in_pairs=True,
    ),
    "qwen2": Family(architecture="Qwen2ForCausalLM", model_type="qwen2"),
    "qwen2moe": Family(
        architecture="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        config=_qwen2_moe,
        names=QWEN2_MOE_NAMES,
    ),
    "qwen3": Family(architecture="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen3moe": Family(architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", config=_qwen3_moe),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        model_type="gemma2",
        config=_gemma2,
        names=GEMMA_NAMES,
        norm_plus=1.0,
    ),
    "gemma3": Family(
        architecture="Gemma3ForCausalLM",
        model_type="gemma3_text",
        config=_gemma3,
        names=GEMMA_NAMES,
        norm_plus=1.0,
    ),
    "phi3": Family(
        architecture="Phi3ForCausalLM",
        model_type="phi3",
        config=_phi3,
        names={"ffn_up": "mlp.gate_up_proj"},
    ),
    "olmo2": Family(architecture="Olmo2ForCausalLM", model_type="olmo2"),
    "olmo2 with windows": Family(
        architecture="Olmo3ForCausalLM", model_type="olmo3", config=lambda m: _windows(m, 4)
    ),
    "smollm3": Family(
        architecture="SmolLM3ForCausalLM", model_type="smollm3", config=_llama, heads_in_pairs=True
    ),
    "granite": Family(
        architecture="GraniteForCausalLM", model_type="granite", config=_granite, heads_in_pairs=True
    ),
    "exaone4": Family(architecture="Exaone4ForCausalLM", model_type="exaone4", config=_exaone4),
    "seed_oss": Family(architecture="SeedOssForCausalLM", model_type="seed_oss", config=_seed_oss),
    "glm4": Family(
        architecture="Glm4ForCausalLM", model_type="glm4", config=_attention_bias, names=GLM_NAMES
    ),
    "glm4moe": Family(architecture="Glm4MoeForCausalLM", model_type="glm4_moe", config=_glm4_moe),
    "minimax-m2": Family(
        architecture="MiniMaxM2ForCausalLM",
        model_type="minimax_m2",
        config=_minimax_m2,
        names=SPARSE_BLOCK_NAMES,
        float32=ROUTER,
    ),
    "ernie4_5-moe": Family(
        architecture="Ernie4_5_MoeForCausalLM",
        model_type="ernie4_5_moe",
        config=_ernie4_5_moe,
        names={"exp_probs_b": "mlp.moe_statics.e_score_correction_bias"},
        float32=ROUTER,
    ),
}
