"""Keys of config.json: those that change the result are computed or refused, those that nobody knows are
named in one warning.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from firelane.errors import UnsupportedModelError
from firelane.models.registry import load_program, warn_of_unknown_keys
from firelane.program.ops import Attention, Linear, RopeAndCache, Route
from firelane.program.program import Program
from tests.models.families import FAMILIES
from tests.models.toy_config import Config

NORMED = [
    name
    for name, make in FAMILIES.items()
    if any(isinstance(op, RopeAndCache) and op.norm for op in load_program(make()).ops)
]


def test_unknown_keys_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Also those that say no, and those of sections; null stands for an absent key."""
    config = FAMILIES["llama3"]()
    config["rope_parameters"] |= {"mscale": 2.0}
    unknown = {"sliding_window": 128, "new_switch": False, "new_list": [], "projector": None}
    program = load_program(config | unknown)
    assert program == load_program(config)
    assert program.unknown_keys == ("rope_parameters.mscale", "sliding_window", "new_switch", "new_list")
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_keys(program, "toy")
        warn_of_unknown_keys(load_program(FAMILIES["llama3"]()), "toy")
    (record,) = caplog.records
    assert "model=toy keys=rope_parameters.mscale,sliding_window,new_switch,new_list" in record.getMessage()


def test_keys_of_many_layers_are_named_once() -> None:
    config = FAMILIES["llama_nemotron"]()
    for block in config["block_configs"]:
        block["attention"]["latent"] = 2
    assert load_program(config).unknown_keys == ("block_configs.attention.latent",)
    section = FAMILIES["kimi_linear"]()["linear_attn_config"] | {"window": 8}
    program = load_program(FAMILIES["kimi_linear"]() | {"linear_attn_config": section})
    assert program.unknown_keys == ("linear_attn_config.window",)


@pytest.mark.parametrize("family", FAMILIES)
def test_toy_configs_have_none(family: str) -> None:
    assert load_program(FAMILIES[family]()).unknown_keys == ()


@pytest.mark.parametrize("family", NORMED)
def test_norms_of_heads_are_not_switched_off_in_silence(family: str) -> None:
    """In glm4_moe and llama4, which have norms of heads in some configs only, a config without them is
    another program."""
    config = FAMILIES[family]()
    assert load_program(config | {"use_qk_norm": True}) == load_program(config)
    if family in ("glm4_moe", "llama4"):
        without = load_program(config | {"use_qk_norm": False})
        assert not any(isinstance(op, RopeAndCache) and op.norm for op in without.ops)
    else:
        with pytest.raises(UnsupportedModelError, match="use_qk_norm = False: this family computes true"):
            load_program(config | {"use_qk_norm": False})


ONE_VALUE: list[tuple[str, Config, Config]] = [
    ("qwen3", {"use_qk_norm": True}, {"use_qk_norm": False}),
    ("mistral", {"qk_layernorm": False}, {"qk_layernorm": True}),
    ("qwen3_moe", {"shared_expert_intermediate_size": 0}, {"shared_expert_intermediate_size": 64}),
    ("qwen3_5", {"output_gate_type": "swish"}, {"output_gate_type": "sigmoid"}),
    ("qwen3_5", {"mlp_only_layers": []}, {"mlp_only_layers": [1]}),
    ("minimax_m2", {"shared_intermediate_size": 0}, {"shared_intermediate_size": 512}),
    ("ernie4_5_moe", {"use_rmsnorm": True}, {"use_rmsnorm": False}),
    ("granite_hybrid", {"normalization_function": "rmsnorm"}, {"normalization_function": "layernorm"}),
    ("hy3", {"route_norm": True, "qk_norm": True}, {"route_norm": False}),
    ("llama2", {"rope_interleaved": False}, {"rope_interleaved": True}),
    ("glm4", {"rope_interleaved": True}, {"rope_interleaved": False}),
    ("gemma2", {"logit_scale": 1.0}, {"logit_scale": 0.25}),
    ("granite", {"final_logit_softcapping": 0.0}, {"final_logit_softcapping": 30.0}),
    ("mixtral", {"norm_topk_prob": True}, {"norm_topk_prob": False}),
    ("minimax_m2", {"routed_scaling_factor": 1.0}, {"routed_scaling_factor": 2.5}),
]


@pytest.mark.parametrize(("family", "computed", "other"), ONE_VALUE)
def test_one_value_is_computed(family: str, computed: Config, other: Config) -> None:
    config = FAMILIES[family]()
    program = load_program(config | computed)
    assert program == load_program(config)
    assert program.unknown_keys == ()
    with pytest.raises(UnsupportedModelError, match=next(iter(other))):
        load_program(config | other)


def test_shares_of_experts_do_not_matter_without_experts() -> None:
    """Dense models of a series with experts are published with such keys."""
    config = FAMILIES["qwen3_5"]()
    assert load_program(config | {"norm_topk_prob": False}) == load_program(config)


def test_biases_that_tensors_tell_of_are_named() -> None:
    """Qwen2 has biases of queries, keys and values whatever this key says."""
    config = FAMILIES["qwen2"]()
    assert load_program(config | {"attention_bias": False}).unknown_keys == ("attention_bias",)
    assert load_program(config | {"attention_bias": True}).unknown_keys == ()


def test_published_keys_that_change_nothing() -> None:
    for family, keys in (
        ("smollm3", {"max_window_layers": 28}),
        ("granite_hybrid", {"init_method": "mup"}),
        ("deepseek_v3", {"add_cross_attention": False, "diversity_penalty": 0.0, "pruned_heads": {}}),
    ):
        assert load_program(FAMILIES[family]() | keys).unknown_keys == ()


@pytest.mark.parametrize("family", ["qwen3_moe", "hy3", "deepseek_v3", "ernie4_5_moe", "mixtral"])
def test_experts_may_be_counted_under_another_familys_name(family: str) -> None:
    """transformers 5 writes num_local_experts for families that have called it otherwise before."""
    config = FAMILIES[family]()
    own = next(key for key in COUNTS if key in config)
    for name in COUNTS:
        renamed = {k: v for k, v in config.items() if k != own} | {name: config[own]}
        assert _experts(load_program(renamed)) == _experts(load_program(config))


COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def _experts(program: Program) -> list[int]:
    return [op.logits.width for op in program.ops if isinstance(op, Route)]


def test_gemma4_as_transformers_5_writes_it() -> None:
    config = FAMILIES["gemma4"]()
    old = ("global_head_dim", "num_global_key_value_heads")
    rest = {key: value for key, value in config.items() if key not in old}
    layers: dict[str, Any] = {"01": {"head_dim": 64, "num_key_value_heads": 1}}
    assert load_program(rest | {"per_layer_config": layers}) == load_program(config)
    for wrong in ({"00": layers["01"]}, layers | {"00": layers["01"]}):
        with pytest.raises(UnsupportedModelError, match="per_layer_config"):
            load_program(rest | {"per_layer_config": wrong})


def test_caps_and_factors_of_families_that_read_them() -> None:
    """The comparison with the finished program leaves them alone."""
    program = load_program(FAMILIES["gemma2"]() | {"final_logit_softcapping": 9.0})
    assert max(op.softcap for op in program.ops if isinstance(op, Linear)) == 9.0
    assert all(op.softcap for op in program.ops if isinstance(op, Attention))
