"""A model's settings are computed, or refused by name."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firelane.contract import reach
from firelane.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader, read_config
from firelane.models.registry import architectures, load_program
from firelane.program.ops import Attention, Embed, Linear, RopeAndCache
from firelane.program.values import DType
from tests.models.families import FAMILIES

LLAMA = FAMILIES["llama3"]()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": ["RegistryForCausalLM"]}, "RegistryForCausalLM"),
        ({"architectures": []}, "architectures"),
        ({"architectures": [["x"]]}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type"),
        ({"rope_parameters": None, "rope_scaling": {"type": "ntk", "factor": 2.0}}, "type"),
        ({"rope_parameters": LLAMA["rope_parameters"] | {"high_freq_factor": 0.5}}, "high_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"torch_dtype": "float64"}, "torch_dtype"),
        ({"dtype": "float8_e4m3fn"}, "dtype"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": -5}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": "96"}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        load_program(LLAMA | change)
    assert "\n" not in str(caught.value)


def test_qwen_windows_that_contradict_are_refused() -> None:
    config = FAMILIES["qwen3"]() | {"layer_types": ["full_attention", "sliding_attention"]}
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        load_program(config)
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        load_program(FAMILIES["qwen2"]() | {"layer_types": ["chunked_attention"] * 2})


def test_harmless_keys_pass() -> None:
    more = {
        "transformers_version": "4.40.0",
        "attention_dropout": 0.1,
        "_name_or_path": "x",
        "pretraining_tp": 2,
        "sep_token_id": 3,
        "auto_map": {"AutoModelForCausalLM": "modeling_x.X"},
        "rope_interleaved": False,
        "use_qk_norm": False,
        "logits_scaling": 1.0,
        "final_logit_softcapping": 0,
        "mlp_bias": False,
        "qkv_bias": False,
        "some_absent_switch": None,
    }
    assert load_program(LLAMA | more) == load_program(LLAMA)
    assert load_program(LLAMA | more).unknown_keys == ()


def test_windows() -> None:
    def windows(config: dict[str, Any]) -> list[int]:
        return [reach(layer.span) or 0 for layer in load_program(config).cache_layers]

    mistral, qwen2 = FAMILIES["mistral"](), FAMILIES["qwen2"]()
    assert windows(mistral | {"sliding_window": None}) == [0, 0]
    assert windows({k: v for k, v in mistral.items() if k != "sliding_window"}) == [4096, 4096]
    assert windows(qwen2) == [0, 24]
    assert windows(qwen2 | {"use_sliding_window": False}) == [0, 0]
    assert windows(qwen2 | {"max_window_layers": 0}) == [24, 24]
    assert windows(qwen2 | {"layer_types": ["sliding_attention", "full_attention"]}) == [24, 0]


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize(
    ("name", "dtype"), [("bfloat16", DType.BF16), ("float32", DType.F32), ("float16", DType.F32)]
)
def test_dtypes(key: str, name: str, dtype: DType) -> None:
    program = load_program(LLAMA | {key: name})
    assert {w.dtype for w in program.weights if len(w.shape) == 2} == {dtype}
    assert {w.dtype for w in program.weights if len(w.shape) == 1} == {DType.F32}
    assert {c.dtype for c in program.cache_layers} == {dtype}


def test_a_dtype_that_tensors_decide_holds_them_all() -> None:
    assert load_program(LLAMA | {"torch_dtype": "auto"}) == load_program(LLAMA | {"torch_dtype": None})


def test_tied_weight_is_one_object() -> None:
    tied = load_program(LLAMA)
    embed = next(op for op in tied.ops if isinstance(op, Embed))
    logits = [op for op in tied.ops if isinstance(op, Linear)][-1]
    assert embed.table is logits.weight
    untied = load_program(LLAMA | {"tie_word_embeddings": False})
    assert len(untied.weights) == len(tied.weights) + 1


def test_attention_of_wide_heads() -> None:
    attention = next(op for op in load_program(FAMILIES["mistral"]()).ops if isinstance(op, Attention))
    assert attention.scale == 32**-0.5
    assert attention.q.width == 128


def test_the_longest_sequence_reaches_the_rotation() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64} | factors
    config = LLAMA | {"rope_parameters": rope}

    def slowest(max_model_len: int | None) -> float:
        program = load_program(config, max_model_len=max_model_len)
        op = next(op for op in program.ops if isinstance(op, RopeAndCache))
        return op.rotary.inverse_frequencies[-1]

    assert slowest(None) == slowest(65) == slowest(64) / 2


def test_architectures() -> None:
    found = architectures()
    assert found == sorted(set(found))
    assert {"LlamaForCausalLM", "Gemma3ForConditionalGeneration", "Olmo3ForCausalLM"} <= set(found)


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_config(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"config\.json: not .*: fetch it again$"):
        read_config(tmp_path)


def test_read_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_config(tmp_path) == LLAMA


@pytest.mark.parametrize("value", [10**400, 1e300, 1e-300, 5e-324, 1e19, math.inf, math.nan])
def test_absurd_numbers_are_refused(value: float) -> None:
    with pytest.raises(UnsupportedModelError, match=r"rope_theta.*a positive number from 1e-18 to 1e\+18"):
        ConfigReader({"rope_theta": value}).number("rope_theta")


@pytest.mark.parametrize("theta", [1e-18, 1.0, 1e18])
@pytest.mark.parametrize("factor", [1e-18, 1e18])
@pytest.mark.filterwarnings("error")
def test_numbers_that_are_taken_can_be_computed_with(theta: float, factor: float) -> None:
    config = ConfigReader({"rope_theta": theta, "rope_scaling": {"type": "linear", "factor": factor}})
    assert np.isfinite(read_rope(config, head_dim=64).rotary.table(100)).all()


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_a_config_that_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=r"not a regular file|larger than"):
        read_config(tmp_path)
