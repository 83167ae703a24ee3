"""Keys of config.json of families with recurrent layers, from the metadata of a GGUF file; see
expert_configs.py."""

from __future__ import annotations

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.dense_configs import granite_factors
from firelane.models.gguf.expert_configs import experts, qwen3_moe
from firelane.models.gguf.latent_configs import latent
from firelane.models.gguf.metadata import Config, Metadata


def qwen3_next(metadata: Metadata) -> Config:
    return _next(metadata) | _qwen_experts(metadata)


def qwen35(metadata: Metadata) -> Config:
    return _next(metadata)


def _qwen_experts(metadata: Metadata) -> Config:
    found = qwen3_moe(metadata)
    return found | {
        "shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length"),
        "intermediate_size": found["moe_intermediate_size"],  # of dense layers, and there are none
    }


def _next(metadata: Metadata) -> Config:
    """The layers without a delta network have attention."""
    names = [f"blk.{layer}.ssm_a" for layer in range(metadata.layers)]
    return {
        "layer_types": [
            "linear_attention" if name in metadata.shapes else "full_attention" for name in names
        ],
        "linear_conv_kernel_dim": metadata.size("ssm.conv_kernel"),
        "linear_key_head_dim": metadata.size("ssm.state_size"),
        "linear_num_key_heads": metadata.size("ssm.group_count"),
        "linear_num_value_heads": metadata.size("ssm.time_step_rank"),
        "linear_value_head_dim": _head_size(metadata),
    }


def _head_size(metadata: Metadata) -> int:
    inner, heads = metadata.size("ssm.inner_size"), metadata.size("ssm.time_step_rank")
    if inner % heads:
        raise UnsupportedModelError(
            f"metadata {metadata.architecture}.ssm.inner_size = {inner}: ssm.time_step_rank = {heads} heads "
            "do not make it up"
        )
    return inner // heads


def lfm2(metadata: Metadata) -> Config:
    kv_heads = metadata.of_layers("attention.head_count_kv")
    return {
        "num_key_value_heads": metadata.present("attention.head_count_kv"),
        "layer_types": ["full_attention" if count else "conv" for count in kv_heads],
        "conv_L_cache": metadata.integer("shortconv.l_cache"),
        "norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
    }


def lfm2_moe(metadata: Metadata) -> Config:
    found = lfm2(metadata) | experts(metadata, "num_experts")
    del found["block_auto_adjust_ff_dim"]
    return found | {
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "num_dense_layers": metadata.integer("leading_dense_block_count"),
        "use_expert_bias": metadata.layer_has("exp_probs_b.bias"),
        "norm_topk_prob": metadata.flag("expert_weights_norm", default=True),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
    }


def granite_hybrid(metadata: Metadata) -> Config:
    """Experts are as wide as the file says that MLPs are; the MLPs themselves have their own key."""
    inner, hidden = metadata.size("ssm.inner_size"), metadata.size("embedding_length")
    if inner % hidden:
        raise UnsupportedModelError(
            f"metadata {metadata.architecture}.ssm.inner_size = {inner}: a multiple of the hidden size is "
            "needed"
        )
    kv_heads, width = metadata.of_layers("attention.head_count_kv"), metadata.integer("feed_forward_length")
    routed = experts(metadata, "num_local_experts") if metadata.integer("expert_count", 0) else {}
    return {
        "num_key_value_heads": metadata.present("attention.head_count_kv"),
        "layer_types": ["attention" if heads else "mamba" for heads in kv_heads],
        "mamba_n_heads": metadata.size("ssm.time_step_rank"),
        "mamba_d_head": _head_size(metadata),
        "mamba_d_state": metadata.size("ssm.state_size"),
        "mamba_n_groups": metadata.size("ssm.group_count"),
        "mamba_d_conv": metadata.size("ssm.conv_kernel"),
        "mamba_expand": inner // hidden,
        "mamba_conv_bias": metadata.layer_has("ssm_conv1d.bias"),
        "position_embedding_type": "rope"
        if metadata.flag("rope.scaling.finetuned", default=True)
        else "nope",
        "shared_intermediate_size": metadata.integer("expert_shared_feed_forward_length", width),
        **(routed or {"num_local_experts": 0}),
        **granite_factors(metadata),
    }


NEMOTRON_MIXERS = {"ssm_in": "mamba", "attn_q": "attention", "ffn_up_exps": "moe", "ffn_up": "mlp"}
"""Kinds of layers of Nemotron, by a matrix that no other kind has."""


def nemotron_h(metadata: Metadata) -> Config:
    """Layers without positions, each of one kind. Steps have no limits."""
    return {
        "layers_block_type": [_mixer(metadata, layer) for layer in range(metadata.layers)],
        "rope_scaling": None,
        "num_key_value_heads": metadata.present("attention.head_count_kv"),
        "attention_bias": metadata.layer_has("attn_q.bias"),
        "intermediate_size": metadata.present("feed_forward_length"),
        "mamba_num_heads": metadata.size("ssm.time_step_rank"),
        "mamba_head_dim": _head_size(metadata),
        "ssm_state_size": metadata.size("ssm.state_size"),
        "n_groups": metadata.size("ssm.group_count"),
        "conv_kernel": metadata.size("ssm.conv_kernel"),
        "use_conv_bias": metadata.layer_has("ssm_conv1d.bias"),
    }


def _mixer(metadata: Metadata, layer: int) -> str:
    for part, kind in NEMOTRON_MIXERS.items():
        if f"blk.{layer}.{part}.weight" in metadata.shapes:
            return kind
    known = ", ".join(NEMOTRON_MIXERS)
    raise UnsupportedModelError(f"tensors of layer {layer}: it has none of {known}, which tell its kind")


def nemotron_h_moe(metadata: Metadata) -> Config:
    latent = {"moe_latent_size": metadata.size("moe_latent_size")} if metadata.has("moe_latent_size") else {}
    return (
        nemotron_h(metadata)
        | experts(metadata, "n_routed_experts")
        | latent
        | {
            "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
            "moe_shared_expert_intermediate_size": metadata.integer("expert_shared_feed_forward_length"),
            "n_shared_experts": metadata.integer("expert_shared_count", 1),
            "norm_topk_prob": metadata.flag("expert_weights_norm", default=True),
            "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
            "n_group": metadata.integer("expert_group_count", 1),
            "topk_group": metadata.integer("expert_group_used_count", 1),
        }
    )


def kimi_linear(metadata: Metadata) -> Config:
    """Layers without key heads remember by the delta rule; the config counts them from 1."""
    heads = metadata.same("attention.head_count")
    full = [count > 0 for count in metadata.of_layers("attention.head_count_kv")]
    numbered = list(enumerate(full, start=1))
    found = experts(metadata, "num_experts", "num_experts_per_token") | latent(metadata, heads)
    return found | {
        "model_max_length": metadata.integer("context_length"),
        "rope_parameters": {},  # nothing has positions
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "moe_renormalize": metadata.flag("expert_weights_norm", default=True),
        "num_shared_experts": metadata.integer("expert_shared_count"),
        "first_k_dense_replace": metadata.integer("leading_dense_block_count"),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        "linear_attn_config": {
            "full_attn_layers": [number for number, has_attention in numbered if has_attention],
            "kda_layers": [number for number, has_attention in numbered if not has_attention],
            "head_dim": metadata.size("kda.head_dim"),
            "num_heads": heads,
            "short_conv_kernel_size": metadata.size("ssm.conv_kernel"),
        },
    }
