"""Configs of families that contradict themselves, or ask for what is not computed: refused in one line that
names the key."""

from __future__ import annotations

from typing import Any

import pytest

from firelane.contract.span import CAUSAL, Chunk, Window
from firelane.errors import UnsupportedModelError
from firelane.models.registry import load_program
from firelane.program.ops import Attention, GatedLinear, Linear, RopeAndCache
from tests.models.families import FAMILIES
from tests.models.toy_config import WINDOW
from tests.models.toy_dense import CYCLE


def _block(**attention: Any) -> dict[str, Any]:
    """One layer of Llama-Nemotron."""
    block = {"attention": {"n_heads_in_group": 6, **attention}, "ffn": {"ffn_mult": 1.5}}
    return {"num_hidden_layers": 1, "block_configs": [block]}


def _delta(**changes: Any) -> dict[str, Any]:
    """Another section of Kimi-Linear."""
    return {"linear_attn_config": FAMILIES["kimi_linear"]()["linear_attn_config"] | changes}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no window": ("gemma2", {"sliding_window": 0}, "sliding_window = 0"),
    "another gate": ("gemma2", {"hidden_activation": "relu"}, "hidden_activation = 'relu'"),
    "negative cap": ("gemma2", {"attn_logit_softcapping": -5.0}, "attn_logit_softcapping"),
    "no scale": ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    "both directions": ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "types of other layers": ("gemma3", {"layer_types": CYCLE}, "layer_types.*3 entries"),
    "unknown type": ("olmo3", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
    "inputs of half a number": (
        "gemma4",
        {"hidden_size_per_layer_input": 1.5},
        "hidden_size_per_layer_input",
    ),
    "a table without all tokens": (
        "gemma4_e",
        {"vocab_size_per_layer_input": 100},
        "vocab_size_per_layer_input = 100.*need a row each",
    ),
    "no keys at all": (
        "gemma4_e",
        {"num_kv_shared_layers": 4},
        "num_kv_shared_layers = 4.*keys of their own",
    ),
    "more than there are": ("gemma4_e", {"num_kv_shared_layers": 9}, "num_kv_shared_layers = 9"),
    "keys of one kind alone": ("gemma4_e", {"num_kv_shared_layers": 3}, "num_kv_shared_layers = 3"),
    "no experts": ("gemma4", {"enable_moe_block": True}, "num_experts"),
    "picks": ("gemma4_moe", {"top_k_experts": 9}, "top_k_experts = 9.*only num_experts = 6"),
    "heads that do not divide": (
        "gemma4",
        {"num_global_key_value_heads": 3},
        "num_global_key_value_heads = 3.*divide",
    ),
    "another pattern than the types": (
        "mimo_v2_flash",
        {"hybrid_layer_pattern": [0, 0, 1]},
        "hybrid_layer_pattern.*as in layer_types",
    ),
    "wider heads in windows": ("mimo_v2_flash", {"swa_head_dim": 64}, "swa_head_dim = 64: only 48"),
    "key heads that do not divide": (
        "mimo_v2_flash",
        {"swa_num_key_value_heads": 4},
        "swa_num_key_value_heads = 4.*divide num_attention_heads = 6",
    ),
    "sinks everywhere": (
        "mimo_v2_flash",
        {"add_full_attention_sink_bias": True},
        "add_full_attention_sink_bias = True",
    ),
    "an expert for all": ("mimo_v2_flash", {"n_shared_experts": 1}, "n_shared_experts = 1: only 0"),
    "two epsilons": ("mimo_v2_flash", {"rms_norm_eps": 1e-3}, "layernorm_epsilon = 1e-05: rms_norm_eps"),
    "experts in other layers": ("mimo_v2_flash", {"moe_layer_freq": [0, 1]}, "moe_layer_freq.*3 entries"),
    "no rotations": ("gemma4", {"rope_parameters": None}, "rope_parameters = missing"),
    "positions of other layers": ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers.*2 layers"),
    "positions that are no flags": ("smollm3", {"no_rope_layers": [1, 2]}, "no_rope_layers.*ones and zeros"),
    "interval": ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval"),
    "infinite logits": ("granite", {"logits_scaling": 0.0}, "logits_scaling"),
    "a pattern of letters alone": ("exaone4", {"layer_types": None}, "sliding_window_pattern = 'LG'"),
    "biases": ("phi3", {"attention_bias": True}, "attention_bias"),
    "whole heads only": ("granite", {"partial_rotary_factor": 0.5}, "partial_rotary_factor.*full rotation"),
    "temperature without a period": (
        "ministral3",
        {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
        "original_max_position_embeddings",
    ),
    "two numbers of picks": ("gpt_oss", {"experts_per_token": 3}, "experts_per_token = 3"),
    "nothing stretched": ("gpt_oss", {"rope_parameters": None}, "rope_parameters = missing"),
    "no limit": ("gpt_oss", {"swiglu_limit": -1.0}, "swiglu_limit"),
    "chunks of 0": ("llama4", {"attention_chunk_size": 0}, "attention_chunk_size = 0"),
    "chunks of no size": ("llama4", {"attention_chunk_size": None}, "attention_chunk_size = missing"),
    "experts in no layer": ("llama4", {"moe_layers": [1, 3]}, r"moe_layers = \[1, 3\].*3 layers"),
    "windows among chunks": ("llama4", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
    "a temperature in words": ("llama4", {"attn_temperature_tuning": "high"}, "attn_temperature_tuning"),
    "layers of no number": (
        "llama_nemotron",
        {"num_hidden_layers": 5},
        "block_configs.*4 objects.*each of 5",
    ),
    "no blocks": ("llama_nemotron", {"block_configs": None}, "block_configs"),
    "replaced": (
        "llama_nemotron",
        _block(replace_with_linear=True),
        r"block_configs\[0\].*replace_with_linear",
    ),
    "a window": ("llama_nemotron", _block(window_length=8), r"block_configs\[0\].*window_length = 8"),
    "no divisor": ("llama_nemotron", _block(n_heads_in_group=4), "n_heads_in_group = 4.*divide"),
    "no attention at all": ("llama_nemotron", _block(no_op=True), "at least one layer with attention"),
    "key heads": ("qwen3_next", {"linear_num_key_heads": 3}, "linear_num_key_heads = 3.*divide"),
    "one tap": ("qwen3_next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim = 1.*at least 2"),
    "no attention": ("qwen3_next", {"layer_types": ["linear_attention"] * 4}, "layer_types.*at least one"),
    "no attention in so few": ("qwen3_next", {"full_attention_interval": 5}, "full_attention_interval = 5"),
    "layers of another kind": ("qwen3_5", {"layer_types": ["conv", "full_attention"]}, "layer_types"),
    "biases of gated heads": ("qwen3_5", {"attention_bias": True}, "attention_bias"),
    "no gates": ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate = False"),
    "a rounded state": ("qwen3_5", {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype = 'bfloat16'"),
    "raw shares": ("qwen3_5_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
    "picks of all": ("qwen3_next", {"num_experts_per_tok": 7}, "num_experts_per_tok = 7"),
    "biases of convolutions": ("lfm2", {"conv_bias": True}, "conv_bias"),
    "two widths": ("lfm2", {"conv_dim": 96}, "conv_dim = 96: 80 is needed"),
    "two numbers of heads": ("lfm2", {"num_heads": 4}, "num_heads = 4: 5 is needed"),
    "convolutions alone": ("lfm2", {"full_attn_idxs": []}, "full_attn_idxs"),
    "no past": ("lfm2", {"conv_L_cache": 1}, "conv_L_cache = 1"),
    "layers named twice": ("lfm2_moe", {"full_attn_idxs": [0]}, r"full_attn_idxs = \[0\].*the same"),
    "no delta rule": ("kimi_linear", {"linear_attn_config": None}, "linear_attn_config = missing"),
    "a layer named twice": ("kimi_linear", _delta(kda_layers=[1, 2, 3, 4]), "full_attn_layers.*4 layers"),
    "a layer too many": ("kimi_linear", _delta(kda_layers=[1, 2, 4, 5]), "full_attn_layers.*4 layers"),
    "no latents": ("kimi_linear", _delta(kda_layers=[1, 2, 3, 4], full_attn_layers=[]), "full_attn_layers"),
    "positions": ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope = False"),
    "another score": ("kimi_linear", {"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
    "groups of experts": ("kimi_linear", {"num_expert_group": 4}, "num_expert_group = 4.*divided"),
    "heads that are too narrow": ("granite_hybrid", {"mamba_d_head": 16}, "mamba_n_heads = 5: heads of 16"),
    "one tap of Mamba": ("granite_hybrid", {"mamba_d_conv": 1}, "mamba_d_conv = 1.*at least 2"),
    "too many experts in all": (
        "qwen3_next",
        {"num_experts": 1024, "num_hidden_layers": 65},
        "num_experts = 1024: at most 65536",
    ),
    "groups of heads": ("granite_hybrid", {"mamba_n_groups": 2}, "mamba_n_groups = 2.*divide"),
    "layers of a third kind": ("granite_hybrid", {"layer_types": ["mamba", "conv", "mamba"]}, "layer_types"),
    "steps in words": ("granite_hybrid", {"time_step_limit": "auto"}, "time_step_limit = 'auto'"),
    "steps the wrong way round": ("granite_hybrid", {"time_step_limit": [1.0, 0.5]}, "time_step_limit"),
    "biases of projections": ("granite_hybrid", {"mamba_proj_bias": True}, "mamba_proj_bias"),
    "other positions": ("granite_hybrid", {"position_embedding_type": "alibi"}, "position_embedding_type"),
    "a key of another family": ("seed_oss", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    family, changes, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        load_program(FAMILIES[family]() | changes)
    assert "\n" not in str(caught.value)


def test_caps_may_be_switched_off() -> None:
    off = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    program = load_program(FAMILIES["gemma2"]() | off)
    assert all(op.softcap == 0 for op in program.ops if isinstance(op, Attention | Linear))


def test_older_gemma3_configs_stretch_full_layers_alone() -> None:
    """Without rope_parameters: rope_theta, rope_scaling and rope_local_base_freq."""
    older = {
        "rope_parameters": None,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert _rotations(load_program(FAMILIES["gemma3"]() | older)) == _rotations(
        load_program(FAMILIES["gemma3"]())
    )


def test_older_olmo3_configs_stretch_full_layers_alone() -> None:
    config = FAMILIES["olmo3"]()
    scaling = dict(config["rope_parameters"]["full_attention"])
    older = {"rope_parameters": None, "rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    assert _rotations(load_program(config | older)) == _rotations(load_program(config))


def test_exaone4_without_windows_has_positions_everywhere() -> None:
    plain = {"sliding_window": None, "layer_types": None, "sliding_window_pattern": None}
    assert None not in _rotations(load_program(FAMILIES["exaone4"]() | plain))
    assert None in _rotations(load_program(FAMILIES["exaone4"]()))


def test_qwen3_5_is_the_language_model_of_a_multimodal_one() -> None:
    text = FAMILIES["qwen3_5"]()
    name = "Qwen3_5ForConditionalGeneration"
    config = {
        "architectures": [name],
        "text_config": text,
        "vision_config": {"depth": 2},
        "image_token_id": 9,
    }
    config["text_config"] = text | {"architectures": None, "mtp_num_hidden_layers": 1}
    assert load_program(config).ops == load_program(text).ops


def test_qwen3_5_may_name_layers_or_count_them() -> None:
    config = FAMILIES["qwen3_next"]()
    named = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
    assert load_program(config | named).ops == load_program(config).ops


def test_lfm2_widths_may_be_taken_as_they_are() -> None:
    config = FAMILIES["lfm2"]()
    rounded = {op.out.width for op in load_program(config).ops if isinstance(op, GatedLinear)}
    plain = load_program(config | {"block_auto_adjust_ff_dim": False})
    assert rounded == {136}
    assert {op.out.width for op in plain.ops if isinstance(op, GatedLinear)} == {200}


def _rotations(program: Any) -> list[Any]:
    return [op.rotary for op in program.ops if isinstance(op, RopeAndCache)]


def test_llama4_chunks_follow_positions_where_the_config_does_not_say() -> None:
    spans = [op.span for op in load_program(FAMILIES["llama4"]()).ops if isinstance(op, Attention)]
    assert spans == [Chunk(WINDOW), CAUSAL, Chunk(WINDOW)]
    turned_off = load_program(FAMILIES["llama4"]() | {"attn_temperature_tuning": 0})
    on = load_program(FAMILIES["llama4"]() | {"attn_temperature_tuning": 4})
    assert [_temperatures(program) for program in (turned_off, on)] == [0, 1]


def test_llama4_without_chunks() -> None:
    whole = {"no_rope_layers": [0, 0, 0], "attention_chunk_size": None}
    program = load_program(FAMILIES["llama4"]() | whole)
    assert {op.span for op in program.ops if isinstance(op, Attention)} == {CAUSAL}


def test_gemma4_layers_that_share_keys_have_no_cache_of_their_own() -> None:
    program = load_program(FAMILIES["gemma4_e"]())
    assert [layer.layer for layer in program.cache_layers] == [0, 1]
    assert [op.layer for op in program.ops if isinstance(op, Attention)] == [0, 1, 0, 1]
    assert "model.layers.2.self_attn.k_proj." in program.left_out
    widths = [op.out.width for op in program.ops if isinstance(op, GatedLinear)]
    assert widths == [136, 136, 272, 272]


def test_llama_nemotron_leaves_out_what_layers_do_without() -> None:
    program = load_program(FAMILIES["llama_nemotron"]())
    heads = {op.layer: op.shape.kv_heads for op in program.ops if isinstance(op, Attention)}
    assert heads == {0: 1, 2: 2, 3: 3}
    widths = {op.out.name: op.out.width for op in program.ops if isinstance(op, GatedLinear)}
    assert widths == {"layers.0.gated": 256, "layers.1.gated": 512, "layers.3.gated": 256}
    (group,) = program.cache_groups
    assert group.bytes_per_token == sum(layer.bytes_per_token for layer in program.cache_layers)


def _temperatures(program: Any) -> int:
    return sum(op.temperature is not None for op in program.ops if isinstance(op, RopeAndCache))


def test_mimo_as_published_is_mimo_as_transformers_writes_it() -> None:
    """A rotation for both kinds of layers, and one window size, beside those of each."""
    toy = FAMILIES["mimo_v2_flash"]()
    published = {key: value for key, value in toy.items() if key not in ("rope_parameters", "layer_types")}
    published |= {
        "rope_theta": 5e5,
        "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.334,
        "sliding_window": 99,
    }
    assert load_program(published) == load_program(toy)
    attending = [op for op in load_program(toy).ops if isinstance(op, Attention)]
    assert [op.span for op in attending] == [CAUSAL, Window(WINDOW), Window(WINDOW)]
    assert [op.sinks is not None for op in attending] == [False, True, True]
    assert [(op.shape.kv_heads, op.shape.v_dim) for op in attending] == [(1, 32), (2, 32), (2, 32)]
