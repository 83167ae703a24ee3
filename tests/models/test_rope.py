"""Rotations: frequencies and factors as transformers computes them in float32, or a refusal by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from firelane.errors import UnsupportedModelError
from firelane.models.blocks.rope import Rope, plain_rope, read_rope
from firelane.models.config.reader import ConfigReader

HEAD_DIM = 64
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": HEAD_DIM}
FACTORS = [1.0 + i / 7 for i in range(HEAD_DIM // 2)]
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
LONGROPE = {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": [3 * f for f in FACTORS]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

KINDS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": LLAMA3 | {"original_max_position_embeddings": 512},
    "llama3_untrained": LLAMA3,
    "llama3_without_blend": LLAMA3 | {"high_freq_factor": 1.0, "original_max_position_embeddings": 512},
    "yarn": YARN,
    "yarn_untruncated": YARN
    | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0, "rope_theta": 150000.0},
    "yarn_betas": YARN | {"beta_fast": 16, "beta_slow": 2},
    "yarn_mscale": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn_mscales": YARN | {"mscale": 0.707, "mscale_all_dim": 1.3},
    "yarn_factor": YARN | {"attention_factor": 1.25},
    "yarn_ratio": YARN | {"factor": None},
    "yarn_small": YARN | {"factor": 0.5},
    "yarn_partial": YARN | {"partial_rotary_factor": 0.5},
    "partial_linear": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    "proportional_factor": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 8.0},
}


def read(rope: dict[str, Any] | None, more: dict[str, Any] | None = None, **options: Any) -> Rope:
    config = {"max_position_embeddings": 4096, "rope_parameters": rope} | (more or {})
    served = options.pop("served", None)
    options.setdefault("partial", 1.0)
    reader = ConfigReader(config, max_model_len=served)
    reader.ignore("max_position_embeddings", "layer_types")
    found = read_rope(reader, head_dim=HEAD_DIM, **options)
    reader.finish()
    return found


def assert_same(got: Rope, frequencies: torch.Tensor, factor: float) -> None:
    """Within four units in the last place; what is passed on has frequency 0."""
    found = np.float32(got.rotary.inverse_frequencies)
    pairs = len(frequencies)
    assert len(found) == HEAD_DIM // 2
    np.testing.assert_array_max_ulp(found[:pairs], frequencies.numpy(), maxulp=4)
    assert not found[pairs:].any()
    assert got.rotary.scale == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    rope = {"rope_theta": 10000.0} | KINDS[kind]
    oracle = LlamaConfig(**SIZES, max_position_embeddings=4096, rope_parameters=dict(rope))
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](oracle, torch.device("cpu"))
    got = read(rope)
    assert_same(got, frequencies, factor)
    share = rope.get("partial_rotary_factor", 1.0) if rope["rope_type"] != "proportional" else 1.0
    assert got.layout.rotated == HEAD_DIM * share


@pytest.mark.parametrize("theta", [1.5, 10000.0, 1e7])
def test_yarn_of_other_bases(theta: float) -> None:
    rope = YARN | {"rope_theta": theta}
    oracle = LlamaConfig(**SIZES, max_position_embeddings=4096, rope_parameters=dict(rope))
    assert_same(read(rope), *ROPE_INIT_FUNCTIONS["yarn"](oracle, torch.device("cpu")))


@pytest.mark.parametrize("length", [1, 512, 513, 4096, None])
def test_longrope_is_chosen_by_what_is_served(length: int | None) -> None:
    """By --max-model-len, or the model's own length; never by the length of one sequence."""
    more = {"original_max_position_embeddings": 512}
    oracle = Phi3Config(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_parameters=LONGROPE | {"rope_theta": 10000.0},
        **more,
    )
    longest = length or 4096
    want = ROPE_INIT_FUNCTIONS["longrope"](oracle, torch.device("cpu"), seq_len=longest)
    got = read(LONGROPE, more, served=length)
    assert_same(got, *want)
    assert got.rotary.scale == math.sqrt(1 + math.log(8) / math.log(512))
    assert got == read(LONGROPE, more, served=4096 if longest > 512 else 512)


def test_older_names() -> None:
    older = {k: v for k, v in LONGROPE.items() if k != "rope_type"} | {"type": "su"}
    more = {"original_max_position_embeddings": 512}
    assert read(None, more | {"rope_scaling": older}) == read(LONGROPE, more)
    scaling = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert read(None, scaling) == read({"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})


def test_one_object_a_layer_type() -> None:
    types = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    oracle = Gemma3TextConfig(head_dim=HEAD_DIM, rope_parameters={k: dict(v) for k, v in types.items()})
    more = {"layer_types": ["sliding_attention", "full_attention"]}
    full = read(types, more, layer_type="full_attention")
    want = ROPE_INIT_FUNCTIONS["linear"](oracle, torch.device("cpu"), layer_type="full_attention")
    assert_same(full, *want)
    sliding = read(types, more, layer_type="sliding_attention")
    assert sliding == plain_rope(1e4, head_dim=HEAD_DIM)
    same = {"rope_type": "default", "rope_theta": 1e4}
    assert read(same, layer_type="sliding_attention") == sliding


@pytest.mark.parametrize("more", [{"partial_rotary_factor": 0.25}, {"rotary_dim": 16}])
def test_partial_rotation_beside_the_section(more: dict[str, Any]) -> None:
    got = read({"rope_type": "default"}, more)
    assert got.layout.rotated == 16
    assert_same(got, 1.0 / 10000.0 ** (torch.arange(0, 16, 2).float() / 16), 1.0)


def test_mscale_of_latent_attention() -> None:
    assert read(YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}).mscale == 0.1 * 0.5 * math.log(8) + 1
    assert read(YARN).mscale == 1.0
    assert read(YARN | {"mscale_all_dim": 0}).mscale == 1.0


def test_keys_that_the_family_reads() -> None:
    rope = YARN | {"llama_4_scaling_beta": 0.1}
    with pytest.raises(UnsupportedModelError, match="llama_4_scaling_beta"):
        read(rope)
    assert read(rope, beside=("llama_4_scaling_beta",)) == read(YARN)


NESTED = {"full_attention": {"rope_type": "default"}}
REFUSED: dict[str, tuple[dict[str, Any] | None, dict[str, Any], str]] = {
    "unknown": ({"rope_type": "spiral"}, {}, r"rope_type = 'spiral'.*supported: default"),
    "no string": ({"rope_type": 4}, {}, "rope_type = 4"),
    "two kinds": ({"rope_type": "linear", "type": "yarn", "factor": 2}, {}, "type = 'yarn'"),
    "two sections": ({"rope_type": "default"}, {"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
    "two thetas": ({"rope_theta": 1e4}, {"rope_theta": 1e6}, r"rope_theta = 1000000.*says 10000"),
    "two lengths": (YARN, {"original_max_position_embeddings": 8}, "original_max_position_embeddings = 8"),
    "two widths": (None, {"partial_rotary_factor": 0.5, "rotary_dim": 16}, "rotary_dim = 16.*says 32 of 64"),
    "odd width": (None, {"rotary_dim": 15}, "15 of 64 dimensions"),
    "too wide": (None, {"rotary_dim": 66}, "66 of 64"),
    "too large a share": (None, {"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5"),
    "nothing turns": (None, {"partial_rotary_factor": 0.001}, "partial_rotary_factor = 0.001"),
    "no factor": ({"rope_type": "linear"}, {}, "factor = missing"),
    "short list": (LONGROPE | {"long_factor": [1.0]}, {}, "long_factor.*a list of 32 numbers"),
    "no numbers": (LONGROPE | {"long_factor": ["x"] * 32}, {}, "long_factor = 'x'"),
    "no list": (LONGROPE | {"long_factor": 2}, {}, "long_factor"),
    "untrained": (LONGROPE, {"original_max_position_embeddings": 1}, "original_max_position_embeddings = 1"),
    "betas": (YARN | {"beta_fast": 1, "beta_slow": 32}, {}, "beta_fast"),
    "base": (YARN | {"rope_theta": 1.0}, {}, "rope_theta = 1.0"),
    "negative mscale": (YARN | {"mscale": -1}, {}, "mscale = -1"),
    "truncate": (YARN | {"truncate": "no"}, {}, "truncate = 'no'"),
    "types unasked": (NESTED, {}, "one object for all layers"),
    "type of no layer": (NESTED, {"layer_types": ["sliding_attention"]}, "full_attention"),
    "types and keys": (NESTED | {"factor": 2.0}, {}, "factor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    rope, more, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        read(rope, more)
    assert "\n" not in str(caught.value)


def test_a_layer_type_without_rotation_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_attention = missing"):
        read(NESTED | {"sliding_attention": None}, layer_type="sliding_attention")


def test_partial_rotation_needs_a_family_that_knows_it() -> None:
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor = 0\.5.*only full rotation"):
        read(None, {"partial_rotary_factor": 0.5}, partial=None)
