"""Configs of models with latent attention: what they mean, and which are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from firelane.contract import CAUSAL
from firelane.errors import UnsupportedModelError
from firelane.models.registry import load_program
from firelane.program.ops import Attention, HeadLinear, IndexTopK, LatentCache, Linear, Route
from firelane.program.program import Program
from tests.models.families import FAMILIES
from tests.models.toy_config import Config
from tests.models.toy_latent import YARN

REFUSED: dict[str, tuple[str, Config, str]] = {
    "shared keys": ("deepseek_v3", {"num_key_value_heads": 1}, "num_key_value_heads = 1.*= 5"),
    "biases": ("deepseek_v3", {"attention_bias": True}, "attention_bias = True"),
    "no latent": ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank = 0: a positive integer"),
    "odd rotation": ("deepseek_v3", {"qk_rope_head_dim": 15}, "qk_rope_head_dim = 15: an even number"),
    "odd rest": ("deepseek_v2", {"qk_nope_head_dim": 21}, "qk_nope_head_dim = 21: an even number"),
    "another score": ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax'.*sigmoid"),
    "another choice": ("deepseek_v3", {"topk_method": "greedy"}, "topk_method = 'greedy'.*noaux_tc"),
    "V3's choice": ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc'.*greedy"),
    "normalised shares": ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob = True"),
    "experts now and then": ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
    "groups of nothing": ("deepseek_v2", {"n_group": 7, "topk_group": 7}, "n_group = 7: 6 experts"),
    "more groups than there are": ("deepseek_v2", {"topk_group": 4}, "topk_group = 4: .* n_group = 3"),
    "too few to choose from": ("deepseek_v3", {"topk_group": 1, "num_experts_per_tok": 3}, "1 x 2 experts"),
    "half a rotation": ("kimi_k2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "another part": (
        "mistral4",
        {"rope_parameters": FAMILIES["mistral4"]()["rope_parameters"] | {"partial_rotary_factor": 0.5}},
        "partial_rotary_factor = 0.5: 16 of 36 columns turn",
    ),
    "layers of no kind": ("glm4_moe_lite", {"mlp_layer_types": ["sparse"] * 2}, "mlp_layer_types.*3 entries"),
    "an indexer": ("deepseek_v3", {"index_topk": 2048}, "index_topk = 2048: only 0 is supported"),
    "an indexer of the stream": ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank.*latents of queries"),
    "narrow index heads": (
        "deepseek_v32",
        {"index_head_dim": 8},
        "index_head_dim = 8: .*qk_rope_head_dim = 16",
    ),
    "index heads of another way": (
        "deepseek_v32",
        {"indexer_rope_interleave": True},
        "indexer_rope_interleave = True: only false",
    ),
    "nothing to share": ("glm_moe_dsa", {"indexer_types": ["shared"] * 4}, "indexer_types.*the first full"),
    "indexers of no kind": (
        "glm_moe_dsa",
        {"indexer_types": ["full", "half"] * 2},
        "4 entries, full or shared",
    ),
    "too few indexers": ("glm_moe_dsa", {"indexer_types": ["full"]}, "4 entries, full or shared"),
    "two counts of experts": ("glm_moe_dsa", {"num_experts": 7}, "num_experts = 7: only 6"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    family, changes, why = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=why) as caught:
        load_program(FAMILIES[family]() | changes)
    assert "\n" not in str(caught.value)


def of(kind: type[Any], program: Program) -> list[Any]:
    return [op for op in program.ops if isinstance(op, kind)]


def test_scores_take_the_square_of_yarns_factor_for_all_dimensions() -> None:
    """Cosines and sines the ratio of both factors."""
    program = load_program(FAMILIES["deepseek_v2"]())
    factors = [0.1 * m * math.log(4) + 1 for m in (0.707, 1.3)]
    assert [op.scale for op in of(Attention, program)] == pytest.approx([36**-0.5 * factors[1] ** 2] * 2)
    scales = [op.rotary.scale for op in of(LatentCache, program)]
    assert scales == pytest.approx([factors[0] / factors[1]] * 2)
    plain = load_program(FAMILIES["deepseek_v2_lite"]())
    assert {op.scale for op in of(Attention, plain)} == {36**-0.5}


def test_norms_of_latents_have_an_eps_of_their_own() -> None:
    program = load_program(FAMILIES["kimi_k2"]())
    assert {op.eps for op in of(LatentCache, program)} == {1e-6}


def test_one_key_a_token() -> None:
    program = load_program(FAMILIES["deepseek_v3"]())
    assert program.spans == (CAUSAL,)
    assert program.kv_bytes_per_token == 3 * (32 + 16) * 4
    assert [op.keep for op in of(HeadLinear, program)] == [16, 0] * 3
    assert program.left_out == ("model.layers.3.",)


def test_v2_lite_makes_queries_of_the_stream() -> None:
    names = {op.out.name for op in of(Linear, load_program(FAMILIES["deepseek_v2_lite"]()))}
    assert "layers.0.queries" in names
    assert "layers.0.query_latent" not in names


def test_greedy_choice_knows_no_groups() -> None:
    lite = FAMILIES["deepseek_v2_lite"]() | {"n_group": 3, "topk_group": 1}
    assert {op.groups for op in of(Route, load_program(lite))} == {None}
    (groups,) = {op.groups for op in of(Route, load_program(FAMILIES["deepseek_v2"]()))}
    assert (groups.count, groups.keep, groups.best) == (3, 2, 1)


@pytest.mark.parametrize(
    ("architecture", "family", "model_type"),
    [
        ("KimiK25ForConditionalGeneration", "kimi_k2", "kimi_k2"),
        ("Mistral3ForConditionalGeneration", "mistral4", "mistral4"),
    ],
)
def test_language_models_of_multimodal_ones(architecture: str, family: str, model_type: str) -> None:
    text = FAMILIES[family]()
    shell = {
        "architectures": [architecture],
        "model_type": "shell",
        "auto_map": {"AutoConfig": "configuration.Config"},
        "text_config": text | {"model_type": model_type},
        "vision_config": {"hidden_size": 8},
        "media_placeholder_token_id": 5,
    }
    assert load_program(shell) == load_program(text)


def test_released_kimi_and_deepseek_configs() -> None:
    """Sizes as published: 68.6 KiB a token, in one group."""
    sizes = {
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_hidden_layers": 61,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 8,
        "moe_intermediate_size": 2048,
        "torch_dtype": "bfloat16",
        "rope_scaling": YARN | {"factor": 40.0},
    }
    program = load_program(FAMILIES["kimi_k2"]() | sizes)
    assert program.kv_bytes_per_token == 61 * 576 * 2
    first = of(HeadLinear, program)[0]
    assert first.weight.shape == (128, 512, 128)
    assert (first.x.width, first.out.width) == (128 * 192, 128 * 576)


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        ({}, [0, 2]),
        ({"indexer_types": None}, [0, 1, 2, 3]),
        ({"indexer_types": None, "index_topk_pattern": "FFSF"}, [0, 1, 3]),
        ({"indexer_types": None, "index_topk_freq": 2, "index_skip_topk_offset": 1}, [0, 2]),
    ],
    ids=str,
)
def test_layers_without_an_indexer_read_what_one_before_has_chosen(changes: Config, full: list[int]) -> None:
    program = load_program(FAMILIES["glm_moe_dsa"]() | changes)
    made = [op.out.name for op in of(IndexTopK, program)]
    assert made == [f"layers.{n}.indices" for n in full]
    read = [op.indices.name for op in of(Attention, program)]
    assert read == [f"layers.{max(n for n in full if n <= layer)}.indices" for layer in range(4)]


def test_released_glm_has_an_index_key_in_every_fourth_layer() -> None:
    """Sizes of GLM-5.2 as published: 93 KiB a token, latents and index keys in one group."""
    sizes = {
        "num_hidden_layers": 78,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_n_heads": 32,
        "indexer_types": None,
        "index_topk_freq": 4,
        "index_skip_topk_offset": 3,
        "torch_dtype": "bfloat16",
    }
    program = load_program(FAMILIES["glm_moe_dsa"]() | sizes)
    assert program.kv_bytes_per_token == 78 * 576 * 2 + 21 * 128 * 2
    made = [int(op.out.name.split(".")[1]) for op in of(IndexTopK, program)]
    assert made == [0, 1, *range(2, 78, 4)]
