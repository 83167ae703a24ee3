"""Adapters in PEFT's layout: what is read of them, and what is refused, by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from firelane.engine.adapters.peft import Adapter, read_adapter
from firelane.errors import CheckpointError, ModelError, UnsupportedModelError

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
PREFIX = "base_model.model."
CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "down_proj"],
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "someone/some-model",
    "bias": "none",
    "inference_mode": True,
    "modules_to_save": None,
}


def factors(seed: int = 0, rank: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {Q: (12, 10), DOWN: (10, 14)}
    made: dict[str, np.ndarray] = {}
    for module, (n, k) in shapes.items():
        made[f"{PREFIX}{module}.lora_A.weight"] = rng.standard_normal((rank, k), np.float32)
        made[f"{PREFIX}{module}.lora_B.weight"] = rng.standard_normal((n, rank), np.float32)
    return made


def write(
    path: Path, tensors: dict[str, np.ndarray] | None = None, dtype: torch.dtype | None = None, **config: Any
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    made = {name: torch.from_numpy(x) for name, x in (factors() if tensors is None else tensors).items()}
    made = {name: x if dtype is None else x.to(dtype) for name, x in made.items()}
    save_file(made, path / "adapter_model.safetensors")
    return path


def numbers(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).to(torch.bfloat16).float().numpy()


def test_factors_and_scale(tmp_path: Path) -> None:
    found = read_adapter(write(tmp_path)).tensors
    assert sorted(found) == [Q, DOWN]
    want = factors()[f"{PREFIX}{Q}.lora_A.weight"]
    np.testing.assert_array_equal(numbers(found[Q].a), rounded(want))
    assert found[Q].b.shape == (12, 4)
    assert found[DOWN].a.shape == (4, 14)
    assert found[Q].scale == found[DOWN].scale == 2.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_of_each_kind(tmp_path: Path, dtype: torch.dtype) -> None:
    found = read_adapter(write(tmp_path, dtype=dtype)).tensors[DOWN]
    want = torch.from_numpy(factors()[f"{PREFIX}{DOWN}.lora_B.weight"]).to(dtype).float().numpy()
    np.testing.assert_array_equal(numbers(found.b), rounded(want))


def test_scales_by_pattern_and_root(tmp_path: Path) -> None:
    tensors = factors()
    small = factors(rank=2)
    for factor in "AB":
        tensors[f"{PREFIX}{DOWN}.lora_{factor}.weight"] = small[f"{PREFIX}{DOWN}.lora_{factor}.weight"]
    config = {"rank_pattern": {"mlp.down_proj": 2}, "alpha_pattern": {f"^{Q}": 6}}
    found = read_adapter(write(tmp_path / "a", tensors, **config)).tensors
    assert (found[Q].scale, found[DOWN].scale) == (6 / 4, 8 / 2)
    found = read_adapter(write(tmp_path / "b", tensors, use_rslora=True, **config)).tensors
    assert (found[Q].scale, found[DOWN].scale) == (6 / 2, 8 / math.sqrt(2))


@pytest.mark.parametrize(
    "prefix", ["", PREFIX, f"{PREFIX}model.language_model.", f"{PREFIX}language_model.model."]
)
def test_names_lead_to_the_modules_of_the_checkpoint(tmp_path: Path, prefix: str) -> None:
    plain = {name.removeprefix(PREFIX): value for name, value in factors().items()}
    if prefix.endswith("model."):
        plain = {name.removeprefix("model."): value for name, value in plain.items()}
        prefix = prefix if prefix != PREFIX else f"{PREFIX}model."
    found = read_adapter(write(tmp_path, {prefix + name: value for name, value in plain.items()}))
    assert sorted(found.tensors) == [Q, DOWN]


def test_a_digest_is_of_the_content(tmp_path: Path) -> None:
    def digest(path: str, *args: Any, **config: Any) -> str:
        return read_adapter(write(tmp_path / path, *args, **config)).digest

    one = digest("one")
    assert digest("two", inference_mode=False) == one
    assert len({one, digest("three", lora_alpha=9), digest("four", factors(seed=1))}) == 3


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
    "magnitudes": ({"use_dora": True}, "use_dora = True"),
    "biases": ({"bias": "all"}, "bias = 'all'"),
    "biases of factors": ({"lora_bias": True}, "lora_bias"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save.*not computed"),
    "fused experts": ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
    "layers twice": ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
    "from some token on": ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
    "transposed": ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    "another base": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights.*convert it"),
    "no rank": ({"r": 0}, "r = 0: a positive integer"),
    "an absurd rank": ({"r": -3}, "r = -3"),
    "no scale": ({"lora_alpha": 0}, "lora_alpha = 0"),
    "a pattern that may take for ever": ({"rank_pattern": {"(a+)+$": 4}}, "rank_pattern.*no regular"),
    "a pattern of words": ({"alpha_pattern": {"q_proj": "8"}}, "alpha_pattern.*positive numbers"),
    "a list as pattern": ({"rank_pattern": [4]}, "rank_pattern.*an object"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_configs_that_are_refused_by_name(tmp_path: Path, name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        read_adapter(write(tmp_path, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", ["gaussian", "eva", "orthogonal", True])
def test_ways_to_begin_training_that_leave_the_base_alone(tmp_path: Path, start: Any) -> None:
    assert read_adapter(write(tmp_path, init_lora_weights=start, eva_config={"rho": 2.0})).tensors


def test_keys_that_nobody_knows_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_adapter(write(tmp_path, use_something=True)).tensors
    assert "adapter_keys_unknown" in caplog.text
    assert "use_something" in caplog.text


def changed(**tensors: np.ndarray | None) -> dict[str, np.ndarray]:
    made = factors()
    for name, value in tensors.items():
        key = f"{PREFIX}{Q}.{name}"
        if value is None:
            del made[key]
        else:
            made[key] = value
    return made


FULL = np.full((4, 10), np.inf, np.float32)
DAMAGED: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "one factor alone": (changed(**{"lora_B.weight": None}), "has one factor alone"),
    "two ranks": (changed(**{"lora_B.weight": np.ones((12, 3), np.float32)}), r"\(4, 10\) and \(12, 3\)"),
    "a rank that the config does not say": (factors(rank=5), "has rank 4, and the file rank 5"),
    "no numbers": (changed(**{"lora_A.weight": FULL}), "not finite"),
    "numbers beyond half": (changed(**{"lora_A.weight": FULL.astype(np.float16)}), "not finite"),
    "integers": (changed(**{"lora_A.weight": np.ones((4, 10), np.int32)}), "is I32"),
    "a vector": (changed(**{"lora_A.weight": np.ones(4, np.float32)}), "a matrix of"),
    "nothing": (changed(**{"lora_A.weight": np.ones((4, 0), np.float32)}), "a matrix of"),
    "two names of one": (factors() | {f"{Q}.lora_A.weight": np.ones((4, 10), np.float32)}, "under two names"),
    "no factor at all": ({}, "no factors"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_files_that_are_refused(tmp_path: Path, name: str) -> None:
    tensors, message = DAMAGED[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        read_adapter(write(tmp_path, tensors))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tensor", ["lora_embedding_A", "lora_magnitude_vector", "base_layer.bias", "modules_to_save.weight"]
)
def test_tensors_that_are_no_factors(tmp_path: Path, tensor: str) -> None:
    tensors = factors() | {f"{PREFIX}{Q}.{tensor}": np.ones((4, 10), np.float32)}
    with pytest.raises(UnsupportedModelError, match="is no factor of a linear module"):
        read_adapter(write(tmp_path, tensors))


def test_pickles_are_not_read(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="may run code: save it as safetensors"):
        read_adapter(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": 4', "[" * 10_000, "null"])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    write(tmp_path)
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
        read_adapter(tmp_path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing"):
        read_adapter(tmp_path)
    write(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
        read_adapter(tmp_path)


def test_damaged_bytes_never_give_more_than_an_error(tmp_path: Path) -> None:
    """A byte of the file is another one, or the file ends early."""
    whole = (write(tmp_path) / "adapter_model.safetensors").read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(60):
        made = bytearray(whole)
        at = int(rng.integers(len(made)))
        made[at] = int(rng.integers(256))
        made = made[: int(rng.integers(len(made)))] if rng.random() < 0.3 else made
        (tmp_path / "adapter_model.safetensors").write_bytes(bytes(made))
        assert is_read_or_refused(tmp_path)


def is_read_or_refused(path: Path) -> bool:
    """Raises what is no error of a model's files."""
    try:
        return isinstance(read_adapter(path), Adapter)
    except ModelError as error:
        return "\n" not in str(error)
