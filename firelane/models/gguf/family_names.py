"""Names of tensors of each family, where they differ from those that most have (see names.py): by the part of
a name in the file, or with its suffix, and then whole."""

from __future__ import annotations

PARTS = ("gate", "up", "down")


def _experts(
    block: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> dict[str, str]:
    """Names of experts that lie in one tensor for each product."""
    return {f"ffn_{part}_exps": f"{block}.{{e}}.{name}" for part, name in zip(PARTS, names, strict=True)}


def _shared(block: str) -> dict[str, str]:
    """Names of the expert of all tokens."""
    return {f"ffn_{part}_shexp": f"{block}.{part}_proj" for part in PARTS}


GEMMA_NAMES = {"ffn_norm": "pre_feedforward_layernorm"}
GEMMA4_NAMES = GEMMA_NAMES | {
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_exps": "experts.{e}.gate_proj",
    "ffn_up_exps": "experts.{e}.up_proj",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
GLM_NAMES = {
    "ffn_up": "mlp.gate_up_proj",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
SPARSE_BLOCK_NAMES = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    **_experts("block_sparse_moe.experts", ("w1", "w3", "w2")),
    "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
}
QWEN2_MOE_NAMES = _shared("mlp.shared_expert")
GPT_OSS_NAMES = {
    "ffn_gate_inp": "mlp.router",
    "attn_sinks.weight": "self_attn.sinks",
    **{f"ffn_{part}_exps.bias": f"mlp.experts.{part}_proj_bias" for part in PARTS},
}
LLAMA4_NAMES = {
    "ffn_gate_inp": "feed_forward.router",
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in PARTS},
    **_experts("feed_forward.experts"),
    **_shared("feed_forward.shared_expert"),
}
QWEN_NEXT_NAMES = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a.": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
    **_shared("mlp.shared_expert"),
}
LFM2_NAMES = {
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "ffn_gate_inp": "feed_forward.gate",
    **_experts("feed_forward.experts", ("w1", "w3", "w2")),
    "exp_probs_b.bias": "feed_forward.expert_bias",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "output_norm": "model.embedding_norm",
    "token_embd_norm": "model.embedding_norm",
}
GRANITE_HYBRID_NAMES = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_dt.bias": "mamba.dt_bias",
    "ssm_a.": "mamba.A_log",
    "ssm_d.": "mamba.D",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.{e}.gate_proj",
    "ffn_up_exps": "block_sparse_moe.{e}.up_proj",
    "ffn_down_exps": "block_sparse_moe.output_linear",
    **{f"ffn_{part}{kind}": f"shared_mlp.{part}_proj" for part in ("gate", "up") for kind in ("", "_shexp")},
    **{f"ffn_down{kind}": "shared_mlp.output_linear" for kind in ("", "_shexp")},
}
NEMOTRON_NAMES = {
    "token_embd": "model.embeddings",
    "output_norm": "model.norm_f",
    "attn_norm": "norm",
    **{f"attn_{part}": f"mixer.{part}_proj" for part in "qkv"},
    "attn_output": "mixer.o_proj",
    "ssm_in": "mixer.in_proj",
    "ssm_conv1d": "mixer.conv1d",
    "ssm_dt.bias": "mixer.dt_bias",
    "ssm_a.": "mixer.A_log",
    "ssm_d.": "mixer.D",
    "ssm_norm": "mixer.norm",
    "ssm_out": "mixer.out_proj",
    **{f"ffn_{part}": f"mixer.{part}_proj" for part in PARTS[1:]},
    **_experts("mixer.experts"),
    **_shared("mixer.shared_experts"),
    "ffn_gate_inp": "mixer.gate",
    "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
}
KIMI_LINEAR_NAMES = {
    **{f"ssm_conv1d_{part}": f"self_attn.{part}_conv1d" for part in "qkv"},
    **{f"ssm_{part}": f"self_attn.{part}_proj" for part in ("f_a", "f_b", "g_a", "g_b")},
    "ssm_beta": "self_attn.b_proj",
    "ssm_a.": "self_attn.A_log",
    "ssm_dt.bias": "self_attn.dt_bias",
    "ssm_norm": "self_attn.o_norm",
    "ffn_gate_inp": "block_sparse_moe.gate",
    **_experts("block_sparse_moe.experts", ("w1", "w3", "w2")),
    **_shared("block_sparse_moe.shared_experts"),
    "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias",
}
