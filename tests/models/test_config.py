"""What a config says is computed, or refused by name."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from firelane.contract import reach
from firelane.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from firelane.models.config import ConfigReader, read_config
from firelane.models.registry import architectures, load_program
from firelane.models.rope import read_rotary
from firelane.program.ops import Attention, Embed, Linear, RopeAndCache
from firelane.program.values import DType
from tests.models.families import FAMILIES

LLAMA = FAMILIES["llama3"]()
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": ["RegistryForCausalLM"]}, "RegistryForCausalLM"),
        ({"architectures": []}, "architectures"),
        ({"architectures": [["x"]]}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": YARN}, "rope_type"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type"),
        ({"rope_parameters": None, "rope_scaling": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_parameters": LLAMA["rope_parameters"] | {"mscale": 2.0}}, "mscale"),
        ({"rope_parameters": LLAMA["rope_parameters"] | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, "auto_map"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"sliding_window": 128}, "sliding_window"),
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
        "some_new_switch": False,
        "some_new_list": [],
    }
    assert load_program(LLAMA | more) == load_program(LLAMA)


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


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500000.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
        LLAMA["rope_parameters"] | {"factor": 8.0, "original_max_position_embeddings": 8192},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_frequencies(rope: dict[str, Any]) -> None:
    """Within two units in the last place of what transformers computes in float32."""
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=dict(rope))
    if rope["rope_type"] == "default":
        want = 1.0 / rope["rope_theta"] ** (torch.arange(0, 128, 2).float() / 128)
    else:
        want, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
    program = load_program(LLAMA | {"head_dim": 128, "rope_parameters": rope})
    op = next(op for op in program.ops if isinstance(op, RopeAndCache))
    np.testing.assert_array_max_ulp(np.float32(op.rotary.inverse_frequencies), want.numpy(), maxulp=4)


def test_architectures() -> None:
    assert architectures() == [
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    ]


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
    assert np.isfinite(read_rotary(config, head_dim=64).table(100)).all()


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
