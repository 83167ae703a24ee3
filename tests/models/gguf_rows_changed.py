"""Rows of the table of GGUF architectures whose tensors are split, transposed or reordered there."""

from __future__ import annotations

from typing import Any

from tests.models import gguf_conversions as gc
from tests.models import toy_dense, toy_experts, toy_latent, toy_recurrent
from tests.models.gguf_rows import LLAMA3_DIVISORS, Row, experts, llama3_divisors
from tests.models.toy_config import WINDOW, Config


def yarn(scaling: Config) -> dict[str, Any]:
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
        "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
    }


def latents(**more: Any) -> dict[str, Any]:
    """Return the fields of the toys with latent attention."""
    sizes = {
        "attention.head_count_kv": 1,
        "attention.key_length": 48,
        "attention.value_length": 32,
        "attention.key_length_mla": 36,
        "attention.value_length_mla": 28,
        "attention.q_lora_rank": 44,
        "attention.kv_lora_rank": 32,
        "rope.dimension_count": 16,
    }
    return experts(
        expert_shared_count=2, leading_dense_block_count=1, expert_weights_scale=1.5, **sizes, **more
    )


DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
}
GEMMA4 = {
    "attention.head_count_kv": [2, 1],
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.key_length_swa": 32,
    "attention.value_length_swa": 32,
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": [True, False],
    "attention.shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0,
    "final_logit_softcapping": 15.0,
    "rope.freq_base_swa": 10000.0,
    "rope.dimension_count": 64,
    "rope.dimension_count_swa": 32,
}
GRANITE = {
    "attention.scale": 0.2,
    "attention.head_count_kv": [0, 1, 0],
    "embedding_scale": 6.0,
    "residual_scale": 0.7,
    "logit_scale": 1.5,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 1,
    "ssm.inner_size": 160,
    "ssm.time_step_rank": 5,
}
NEMOTRON_IN_PYTHON = {"rms_norm_eps": 1e-5, "rope_theta": 10000.0}
"""Keys that the writer of the file reads of a config, and the family does without."""
NEMOTRON = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.group_count": 2,
    "ssm.inner_size": 96,
    "ssm.time_step_rank": 6,
}
ROWS: dict[str, Row] = {
    "gpt-oss": Row(
        architecture="gpt-oss",
        toy=toy_experts.gpt_oss,
        change={"swiglu_limit": 7.0, "layer_types": toy_dense.CYCLE},
        fields=experts(
            **yarn(toy_experts.gpt_oss()["rope_parameters"]), **{"attention.sliding_window": WINDOW}
        ),
        changes=(gc.sinks, gc.alternating_experts),
    ),
    "llama4": Row(
        architecture="llama4",
        toy=toy_experts.llama4,
        change={
            "num_hidden_layers": 4,
            "moe_layers": [0, 1, 2, 3],
            "no_rope_layers": [1, 1, 1, 0],
            "attention_chunk_size": 8192,
            "attn_scale": 0.1,
            "floor_scale": 8192,
        },
        fields=experts(
            expert_used_count=1, feed_forward_length=52, interleave_moe_layer_step=1, expert_shared_count=1
        ),
        changes=(gc.transposed_experts,),
        extra={LLAMA3_DIVISORS: llama3_divisors(toy_experts.llama4())},
    ),
    "deepseek2": Row(
        architecture="deepseek2",
        toy=toy_latent.deepseek_v2,
        change={"rope_scaling": toy_latent.YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
        fields=latents(
            expert_gating_func=1,
            expert_group_count=3,
            expert_group_used_count=2,
            **yarn(toy_latent.YARN),
            **{"rope.scaling.yarn_log_multiplier": 0.0707},
        ),
        changes=(gc.latents,),
    ),
    "deepseek2, older": Row(
        architecture="deepseek2",
        toy=toy_latent.deepseek_v2_lite,
        fields={
            **{k: v for k, v in latents().items() if not k.endswith(("_mla", "q_lora_rank"))},
            "attention.head_count_kv": 5,
            "attention.key_length": 36,
            "attention.value_length": 28,
        },
    ),
    "deepseek2, sigmoids": Row(
        architecture="deepseek2",
        toy=toy_latent.deepseek_v3,
        fields=latents(
            expert_gating_func=2,
            expert_weights_norm=True,
            expert_group_count=3,
            expert_group_used_count=2,
            **yarn(toy_latent.YARN),
            **{"rope.scaling.yarn_log_multiplier": 0.1},
        ),
        changes=(gc.latents,),
    ),
    "qwen3next": Row(
        architecture="qwen3next",
        toy=toy_recurrent.qwen3_next,
        change={"decoder_sparse_step": 1},
        fields=experts(expert_shared_feed_forward_length=52, **DELTA),
        changes=(gc.norms_plus_one, gc.by_key_head, gc.recurrent),
    ),
    "qwen3next, older": Row(
        architecture="qwen3next",
        toy=toy_recurrent.qwen3_next,
        change={"decoder_sparse_step": 1},
        fields=experts(expert_shared_feed_forward_length=52, **DELTA),
        changes=(
            gc.norms_plus_one,
            gc.recurrent,
        ),
    ),
    "qwen35": Row(
        architecture="qwen35",
        toy=toy_recurrent.qwen3_5,
        fields=DELTA | {"rope.dimension_sections": [2, 1, 1, 0]},
        changes=(
            gc.norms_plus_one,
            gc.tiled_values,
        ),
    ),
    "qwen35moe": Row(
        architecture="qwen35moe",
        toy=toy_recurrent.qwen3_5_moe,
        fields=experts(expert_shared_feed_forward_length=52, **DELTA | {"ssm.group_count": 4}),
        changes=(
            gc.stacked_experts,
            gc.norms_plus_one,
            gc.tiled_values,
        ),
    ),
    "lfm2": Row(
        architecture="lfm2",
        toy=toy_recurrent.lfm2,
        fields={"attention.head_count_kv": [0, 1, 0, 1], "shortconv.l_cache": 3, "feed_forward_length": 136},
        changes=(gc.short_convolution,),
    ),
    "lfm2moe": Row(
        architecture="lfm2moe",
        toy=toy_recurrent.lfm2_moe,
        fields=experts(
            expert_gating_func=2,
            expert_weights_scale=1.5,
            leading_dense_block_count=1,
            **{"attention.head_count_kv": [0, 1, 0], "shortconv.l_cache": 4},
        ),
        changes=(gc.short_convolution,),
    ),
    "gemma4": Row(
        architecture="gemma4",
        toy=toy_dense.gemma4,
        fields=GEMMA4,
        changes=(gc.gemma4_scales,),
        extra={LLAMA3_DIVISORS: [1.0] * 8 + [1e30] * 24},
    ),
    "gemma4, inputs of layers": Row(
        architecture="gemma4",
        toy=toy_dense.gemma4_e,
        fields=GEMMA4
        | {
            "attention.head_count_kv": 2,
            "attention.key_length": 32,
            "attention.value_length": 32,
            "attention.key_length_swa": 16,
            "attention.value_length_swa": 16,
            "attention.sliding_window_pattern": [True, False, True, False],
            "attention.shared_kv_layers": 2,
            "feed_forward_length": [136, 136, 272, 272],
            "embedding_length_per_layer_input": 36,
            "rope.dimension_count": 32,
            "rope.dimension_count_swa": 16,
        },
        changes=(gc.gemma4_scales,),
        extra={LLAMA3_DIVISORS: [1.0] * 4 + [1e30] * 12},
    ),
    "gemma4, experts": Row(
        architecture="gemma4",
        toy=toy_experts.gemma4_moe,
        fields=experts(**GEMMA4),
        changes=(gc.gemma4_scales, gc.named_experts),
        extra={LLAMA3_DIVISORS: [1.0] * 8 + [1e30] * 24},
    ),
    "granitehybrid": Row(
        architecture="granitehybrid",
        toy=toy_recurrent.granite_hybrid,
        fields={
            **GRANITE,
            "feed_forward_length": 44,
            "expert_count": toy_experts.EXPERTS,
            "expert_used_count": 2,
            "expert_shared_feed_forward_length": 52,
            "rope.scaling.finetuned": False,
        },
        in_pairs=True,
        changes=(gc.granite_mlps, gc.mamba),
    ),
    "granitehybrid, dense": Row(
        architecture="granitehybrid",
        toy=toy_recurrent.granite_hybrid_dense,
        fields={
            **GRANITE,
            "feed_forward_length": 52,
            "ssm.time_step_rank": 10,
            "ssm.group_count": 2,
            "rope.scaling.finetuned": True,
        },
        in_pairs=True,
        changes=(gc.granite_mlps, gc.mamba),
    ),
    "nemotron_h": Row(
        architecture="nemotron_h",
        toy=toy_recurrent.nemotron_h,
        change={"hybrid_override_pattern": "M*-M", "num_hidden_layers": 4, **NEMOTRON_IN_PYTHON},
        fields=NEMOTRON | {"attention.head_count_kv": [0, 2, 0, 0], "feed_forward_length": [0, 0, 136, 0]},
        changes=(gc.nemotron,),
    ),
    "nemotron_h_moe": Row(
        architecture="nemotron_h_moe",
        toy=toy_recurrent.nemotron_h,
        change={"hybrid_override_pattern": "ME*M", "num_hidden_layers": 4, **NEMOTRON_IN_PYTHON},
        fields=NEMOTRON
        | experts(expert_shared_feed_forward_length=52, expert_weights_scale=2.5, moe_latent_size=48)
        | {"attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 44, 0, 0]},
        changes=(gc.nemotron,),
    ),
    "nemotron_h_moe, no latent": Row(
        architecture="nemotron_h_moe",
        toy=toy_recurrent.nemotron_3,
        change={"num_hidden_layers": 4, **NEMOTRON_IN_PYTHON},
        fields=NEMOTRON
        | experts(
            expert_shared_feed_forward_length=52,
            expert_weights_scale=2.5,
            expert_group_count=3,
            expert_group_used_count=2,
        )
        | {"attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 44, 0, 44]},
        changes=(gc.nemotron,),
    ),
    "kimi-linear": Row(
        architecture="kimi-linear",
        toy=toy_recurrent.kimi_linear,
        change={
            "linear_attn_config": toy_recurrent.kimi_linear()["linear_attn_config"] | {"num_heads": 5},
        },
        fields={
            **{k: v for k, v in latents().items() if not k.endswith("q_lora_rank")},
            "expert_shared_count": 1,
            "attention.head_count_kv": [0, 0, 1, 0],
            "kda.head_dim": 32,
            "ssm.conv_kernel": 4,
        },
        changes=(gc.latents, gc.kimi),
    ),
    "deci": Row(
        architecture="deci",
        toy=toy_dense.llama_nemotron,
        fields={
            "attention.head_count": [6, 0, 6, 6],
            "attention.head_count_kv": [1, 0, 2, 3],
            "feed_forward_length": [256, 512, 0, 256],
        },
        in_pairs=True,
        extra={LLAMA3_DIVISORS: llama3_divisors(toy_dense.llama_nemotron())},
    ),
    "mistral3": Row(
        architecture="mistral3",
        toy=toy_dense.ministral3,
        fields={
            **yarn(toy_dense.ministral3()["rope_parameters"]),
            "attention.temperature_scale": toy_dense.ministral3()["rope_parameters"]["llama_4_scaling_beta"],
            "rope.scaling.yarn_log_multiplier": 1.0,
        },
        in_pairs=True,
    ),
    "mistral3, without a temperature": Row(
        architecture="mistral3", toy=toy_dense.mistral, change={"sliding_window": None}, in_pairs=True
    ),
}
