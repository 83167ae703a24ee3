"""A quantisation that hf_quant_config.json alone tells of is read wherever config.json's is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firelane.errors import CheckpointError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.plan.forms import choose_form
from firelane.plan.source import read_model
from firelane.program.values import DType
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.quantized.settings import quantization_of
from tests.plan.published import LLAMA_8B
from tests.weights.quantized.quantized_writers import FORMATS
from tests.weights.quantized.test_quantized import write_quantized

NVFP4 = {
    "quant_algo": "NVFP4",
    "kv_cache_quant_algo": "FP8",
    "group_size": 16,
    "exclude_modules": ["lm_head"],
}
FP8 = {
    "quant_algo": "FP8",
    "kv_cache_quant_algo": "FP8",
    "exclude_modules": ["lm_head", "model.layers.0.mlp*"],
}
MIXED = {
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        f"model.layers.{number}.{module}": {"quant_algo": how}
        for number in range(32)
        for module, how in (("mlp.gate_proj", "NVFP4"), ("mlp.up_proj", "NVFP4"), ("mlp.down_proj", "FP8"))
    },
}


def written(directory: Path, found: Any, config: dict[str, Any] = LLAMA_8B) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "hf_quant_config.json").write_text(json.dumps({"quantization": found}))
    return directory


@pytest.mark.parametrize(
    ("found", "bits"), [(NVFP4, {4.5}), (FP8, {8.0, 16.0}), (MIXED, {4.5, 8.0, 16.0}), ({}, set[float]())]
)
def test_bits_of_a_plan(found: dict[str, Any], bits: set[float], tmp_path: Path) -> None:
    directory, config = read_model(str(written(tmp_path, found)))
    form = choose_form(load_program(config), "auto", directory, config)
    if found:
        assert form.name == "checkpoint"
        assert set(form.bits.values()) == bits
    else:
        assert form.name == "lossless12"


def test_the_config_itself_comes_first(tmp_path: Path) -> None:
    """Also without a method, as one published config has it; the tool's own key tells of it."""
    own = {"quant_algo": "FP8", "producer": {"name": "modelopt"}}
    written(tmp_path, NVFP4, LLAMA_8B | {"quantization_config": own})
    assert read_config(tmp_path)["quantization_config"] == own | {"quant_method": "modelopt"}
    assert quantization_of(tmp_path) == "modelopt"


def test_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    """The same matrices as with the section in config.json."""
    name = "nvfp4, multiplied"
    assert FORMATS[name][1]["quant_method"] == "modelopt"
    wanted = Checkpoint.open(write_quantized(name, tmp_path / "one"))
    directory = write_quantized(name, tmp_path / "two")
    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    found = Checkpoint.open(written(directory, NVFP4, config))
    program = fitted(load_program(read_config(directory)), found)
    assert {weight.dtype for weight in program.weights if weight.is_matrix} == {DType.BF16}
    tensor = "model.layers.0.mlp.down_proj.weight"
    np.testing.assert_array_equal(found.tensor(tensor), wanted.tensor(tensor))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    written(tmp_path, NVFP4)
    (tmp_path / "hf_quant_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json: not valid JSON"):
        read_config(tmp_path)
