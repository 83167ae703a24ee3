"""Bits of weights: of the forms that are asked for, and of what checkpoints say that they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firelane.errors import UsageError
from firelane.models.registry import load_program
from firelane.plan.forms import FORMS, choose_form, stored_bits
from firelane.program.ops import Embed
from firelane.sources.gguf import model_directory
from tests.models.families import FAMILIES, random_tensors
from tests.models.gguf_writer import write_gguf
from tests.plan.published import GPT_OSS_20B, KIMI_K25_TEXT, LLAMA_8B, NOWHERE, SCOUT

BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True, "desc_act": False}


def packed(**weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        (BLOCK, 8.0),
        (AWQ, 4 + 20 / 128),
        (GPTQ, 8 + 16 / 128),
        ({"quant_method": "mxfp4"}, 4.25),
        (packed(num_bits=4, type="int", group_size=32, symmetric=True), 4.5),
        (packed(num_bits=8, type="int", group_size=None, strategy="channel", symmetric=True), 8.0),
        (packed(num_bits=4, type="float", group_size=16, symmetric=True), 4.5),
    ],
    ids=["fp8", "awq", "gptq", "mxfp4", "int4", "int8", "nvfp4"],
)
def test_bits_of_checkpoints(section: dict[str, Any], bits: float) -> None:
    config = LLAMA_8B | {"quantization_config": section}
    program = load_program(config)
    form = choose_form(program, "auto", NOWHERE, config)
    assert form.name == "checkpoint"
    assert program.head is not None
    assert program.head.weight not in form.bits, "heads are left as they are"
    assert set(form.bits.values()) == {bits}
    assert len(form.bits) == 4 * 32


@pytest.mark.parametrize(
    ("config", "coded", "plain"),
    [
        (KIMI_K25_TEXT, ("experts",), ("self_attn", "shared_experts", "layers.0.mlp")),
        (GPT_OSS_20B, ("experts",), ("self_attn", "lm_head", "embed")),
    ],
    ids=["Kimi K2.5", "gpt-oss"],
)
def test_modules_that_are_left_as_they_are(
    config: dict[str, Any], coded: tuple[str, ...], plain: tuple[str, ...]
) -> None:
    stored = stored_bits(NOWHERE, config)
    assert stored is not None
    program = load_program(config)
    for weight in program.weights:
        tensor = weight.tensors[0]
        if any(f".{name}." in f".{tensor}." for name in plain):
            assert stored.of(tensor) is None, tensor
        if weight.matrices > 1 and any(name in tensor for name in coded) and weight.is_matrix:
            assert stored.of(tensor) in (4.25, 4.5), tensor


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_are_asked_for(form: str) -> None:
    program = load_program(SCOUT)
    chosen = choose_form(program, form, NOWHERE, SCOUT)
    table = next(op.table for op in program.ops if isinstance(op, Embed))
    experts = next(w for w in program.weights if w.matrices == 16)
    assert chosen.ratio(experts) == FORMS[form] / 16
    assert chosen.ratio(table) == (FORMS[form] / 16 if form == "lossless12" else 1)
    routers = [w for w in program.weights if w.rows == 16 and w.is_matrix]
    assert routers
    assert all(chosen.ratio(w) == (FORMS[form] / 16 if form == "lossless12" else 1) for w in routers)


def test_tiny_models_stay_as_they_are() -> None:
    config = FAMILIES["llama3"]()
    assert choose_form(load_program(config), "auto", NOWHERE, config).name == "bf16"
    assert choose_form(load_program(LLAMA_8B), "auto", NOWHERE, LLAMA_8B).name == "lossless12"


def test_quantised_checkpoints_are_quantised_once() -> None:
    config = LLAMA_8B | {"quantization_config": AWQ}
    program = load_program(config)
    assert choose_form(program, "bf16", NOWHERE, config).bits == {}
    with pytest.raises(UsageError, match="--weights int8: the checkpoint is quantised already"):
        choose_form(program, "int8", NOWHERE, config)


def test_sections_of_language_models_count() -> None:
    config = {"text_config": {"quantization_config": BLOCK}}
    found = stored_bits(NOWHERE, config)
    assert found is not None
    assert found.of("model.layers.0.mlp.up_proj.weight") == 8.0
    assert stored_bits(NOWHERE, {}) is None


@pytest.mark.parametrize("pattern", ["re:(", "re:.*mlp.*", "model.layers.1", "layers.*.mlp"])
def test_patterns(pattern: str) -> None:
    found = stored_bits(NOWHERE, {"quantization_config": BLOCK | {"modules_to_not_convert": [pattern, 3]}})
    assert found is not None
    plain = found.of("language_model.model.layers.1.mlp.up_proj.weight") is None
    assert plain is (pattern != "re:(")


def test_a_gguf_file_has_its_own(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 96, "torch_dtype": "bfloat16"}
    toy = FAMILIES["qwen3"]() | sizes
    path = write_quantised(tmp_path / "toy.gguf", toy)
    directory = model_directory(path, tmp_path)
    config = json.loads((directory / "config.json").read_text())
    form = choose_form(load_program(config), "auto", directory, config)
    assert form.name == "checkpoint"
    assert {round(bits, 2) for bits in form.bits.values()} <= {8.5, 16.0, 32.0}
    assert 8.5 in form.bits.values()


def write_quantised(path: Path, config: dict[str, Any]) -> Path:
    import gguf
    import numpy as np

    def q8(values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        kind = gguf.GGMLQuantizationType.Q8_0
        return gguf.quants.quantize(values, kind), kind

    return write_gguf(path, "qwen3", config, random_tensors(config, 0), fields={}, quantise=q8)
