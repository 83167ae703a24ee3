"""Keys of config.json of families with experts, from the metadata of a GGUF file.

After llama.cpp's converter (github.com/ggml-org/llama.cpp, convert_hf_to_gguf.py): which keys it writes, and
what it leaves to be known.
"""

from __future__ import annotations

from firelane.models.gguf.dense_configs import windows
from firelane.models.gguf.metadata import Config, Metadata
from firelane.models.gguf.rope import read_rope


def experts(metadata: Metadata, count: str, picks: str = "num_experts_per_tok") -> Config:
    return {count: metadata.experts, picks: metadata.integer("expert_used_count")}


def mixtral(metadata: Metadata) -> Config:
    return experts(metadata, "num_local_experts")


def qwen2_moe(metadata: Metadata) -> Config:
    return experts(metadata, "num_experts") | {
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", default=False),
    }


def qwen3_moe(metadata: Metadata) -> Config:
    return experts(metadata, "num_experts") | {
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", default=True),
    }


def glm4_moe(metadata: Metadata) -> Config:
    return experts(metadata, "n_routed_experts") | {
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


def minimax_m2(metadata: Metadata) -> Config:
    """All MLPs are experts, and their width is the config's only one."""
    return experts(metadata, "num_local_experts") | {
        "intermediate_size": metadata.integer("expert_feed_forward_length"),
        "rotary_dim": metadata.integer("rope.dimension_count"),
    }


def ernie4_5_moe(metadata: Metadata) -> Config:
    return experts(metadata, "moe_num_experts", "moe_k") | {
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "moe_num_shared_experts": metadata.integer("expert_shared_count", 0),
        "moe_layer_start_index": metadata.integer("leading_dense_block_count"),
        "moe_layer_interval": metadata.integer("interleave_moe_layer_step", 1),
    }


def gpt_oss(metadata: Metadata) -> Config:
    """All MLPs are experts; the blend of its yarn is not rounded to whole pairs."""
    rope = read_rope(metadata, metadata.size("attention.key_length"))
    scaling = {key: value for key, value in rope.items() if key == "rope_scaling"}
    return (
        experts(metadata, "num_local_experts")
        | windows(metadata, 2)
        | {
            "intermediate_size": metadata.integer("expert_feed_forward_length"),
            "attention_bias": metadata.layer_has("attn_q.bias"),
            "rope_parameters": {
                "rope_theta": rope["rope_theta"],
                **({**scaling["rope_scaling"], "truncate": False} if scaling else {}),
            },
        }
    )


LLAMA4_MAVERICK = 128
"""Experts of the model whose heads have no norms: files do not say it."""


def llama4(metadata: Metadata) -> Config:
    return experts(metadata, "num_local_experts") | {
        "intermediate_size": metadata.integer("expert_feed_forward_length"),
        "intermediate_size_mlp": metadata.integer("feed_forward_length"),
        "interleave_moe_layer_step": metadata.size("interleave_moe_layer_step", 1),
        "attention_chunk_size": metadata.integer("attention.sliding_window", 8192) or None,
        "use_qk_norm": metadata.experts != LLAMA4_MAVERICK,
    }
