"""Configs of multimodal models: the language model's section, and what is said beside it."""

from __future__ import annotations

from typing import Any

import pytest

from firelane.errors import UnsupportedModelError
from firelane.models.config.composite import language_model
from firelane.models.registry import load_program
from tests.models.families import FAMILIES

TEXT = FAMILIES["llama2"]() | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
VISION = {"hidden_size": 8, "model_type": "siglip", "patch_size": 14}
SHELL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "shell",
    "text_config": TEXT,
    "vision_config": VISION,
    "audio_config": {"hidden_size": 8},
    "image_token_index": 5,
    "boi_token_index": 6,
    "mm_tokens_per_image": 256,
    "multimodal_projector_bias": True,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "vision_feature_layer": -1,
    "use_unified_vision_chunk": True,
    "video_placeholder": "<video>",
    "ignore_index": -100,
    "transformers_version": "5.0.0",
}


def test_a_config_without_section_is_the_language_model() -> None:
    assert language_model(TEXT) == (TEXT, "config.json", ())
    assert language_model(TEXT | {"text_config": None})[1] == "config.json"


def test_same_program() -> None:
    assert load_program(SHELL) == load_program(TEXT)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_what_holds_for_both(key: str) -> None:
    """Said outside, inside, or in both places alike."""
    want = load_program(TEXT | {"dtype": "bfloat16", "tie_word_embeddings": True})
    inside = {k: v for k, v in TEXT.items() if k != "tie_word_embeddings"}
    said = {key: "bfloat16", "tie_word_embeddings": True}
    assert load_program(SHELL | {"text_config": inside} | said) == want
    assert load_program(SHELL | {"text_config": inside | said}) == want
    assert load_program(SHELL | {"text_config": inside | said} | said) == want
    both = SHELL | {"text_config": inside | {"torch_dtype": "bfloat16", "tie_word_embeddings": True}}
    assert load_program(both | {"dtype": "bfloat16"}) == want


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another factor inside": (
        {"text_config": TEXT | {"logit_scale": 2.0}},
        "config.json, text_config: logit_scale",
    ),
    "no object": ({"text_config": "llama"}, "text_config = 'llama'"),
    "empty": ({"text_config": {}}, "config.json, text_config: vocab_size = missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        load_program(SHELL | change)
    assert "\n" not in str(caught.value)


def test_of_two_dtypes_the_outer_one_holds() -> None:
    for outer, inner in (("dtype", "torch_dtype"), ("torch_dtype", "dtype")):
        config = SHELL | {outer: "bfloat16", "text_config": TEXT | {inner: "float32"}}
        assert load_program(config) == load_program(TEXT | {"dtype": "bfloat16"})


def test_flags_of_tied_embeddings_may_disagree() -> None:
    """Tied, until the checkpoint's tensors say otherwise."""
    tied = load_program(TEXT | {"tie_word_embeddings": True})
    assert load_program(SHELL | {"tie_word_embeddings": True}) == tied


def test_unknown_keys_of_both_parts_are_named() -> None:
    """The section holds where both say something."""
    config = SHELL | {"logit_scale": 2.0, "vocab_size": 7, "text_config": TEXT | {"spiral": 1}}
    program = load_program(config)
    assert program == load_program(TEXT)
    assert program.unknown_keys == ("logit_scale", "vocab_size", "text_config.spiral")


def test_what_is_said_twice_alike_is_taken() -> None:
    assert load_program(SHELL | {"vocab_size": TEXT["vocab_size"]}) == load_program(TEXT)
