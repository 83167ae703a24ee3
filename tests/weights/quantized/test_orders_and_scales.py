"""Quantised matrices whose groups are of inputs in an order of their own, and scales of activations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from tests.models.families import random_tensors
from tests.weights.files import to_bf16, write_safetensors
from tests.weights.quantized.quantized_writers import (
    Config,
    Tensors,
    Written,
    fp8_block,
    fp8_tensor,
    gptq,
    gptq_ordered,
    packed_ordered,
    write_tensors,
)
from tests.weights.quantized.test_quantized import CONFIG

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
WORDS = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}
MODULE = "model.layers.0.mlp.down_proj"


def order_of(k: int) -> np.ndarray:
    return np.random.default_rng(k).permutation(k)


def stored(directory: Path, settings: Config, parts: Tensors) -> Checkpoint:
    config = CONFIG | {"quantization_config": settings}
    (directory / "config.json").write_text(json.dumps(config))
    write_tensors(directory / "model.safetensors", {f"{MODULE}.{part}": v for part, v in parts.items()})
    return Checkpoint.open(directory)


WRITERS = {
    "gptq": (lambda values: gptq_ordered(values, order_of(values.shape[1])), GPTQ),
    "gptq, 8 bits": (lambda values: gptq_ordered(values, order_of(values.shape[1]), 8), GPTQ | {"bits": 8}),
    "gptq, reversed": (lambda values: gptq_ordered(values, np.arange(values.shape[1])[::-1]), GPTQ),
    "words": (lambda values: packed_ordered(values, order_of(values.shape[1]), zeros=False), WORDS),
    "words, zeros": (lambda values: packed_ordered(values, order_of(values.shape[1]), zeros=True), WORDS),
}


@pytest.mark.parametrize("name", WRITERS)
def test_an_order_of_inputs_is_undone(name: str, tmp_path: Path) -> None:
    """Numbers are those of the dequantised matrix, each rounded once to bf16."""
    writer, settings = WRITERS[name]
    parts, numbers = writer(np.random.default_rng(1).standard_normal((64, 160), np.float32))
    checkpoint, tensor = stored(tmp_path, settings, parts), f"{MODULE}.weight"
    np.testing.assert_array_equal(checkpoint.tensor(tensor), to_bf16(numbers))
    np.testing.assert_array_equal(checkpoint.rows(tensor, 5, 9), to_bf16(numbers)[5:9])
    assert checkpoint.format(tensor) is None


@pytest.mark.parametrize("order", [np.arange(160) // 32, np.full(160, -1)])
def test_an_order_that_is_none_keeps_the_codes(order: np.ndarray, tmp_path: Path) -> None:
    """The identity, and one that was never filled in."""
    parts, numbers = gptq(np.random.default_rng(1).standard_normal((64, 160), np.float32))
    checkpoint = stored(tmp_path, GPTQ, parts | {"g_idx": ("I32", order.astype(np.int32))})
    np.testing.assert_array_equal(checkpoint.tensor(f"{MODULE}.weight"), to_bf16(numbers))
    assert checkpoint.format(f"{MODULE}.weight") is not None


def static(written: Written, *scales: str) -> Written:
    tensors, numbers = written
    return tensors | {scale: ("F32", np.array(0.5, np.float32)) for scale in scales}, numbers


SCALES = {
    "tensor": (fp8_tensor, None, ("activation_scale",)),
    "blocks": (fp8_block, [128, 128], ("input_scale", "output_scale", "q_scale")),
}


@pytest.mark.parametrize("name", SCALES)
def test_static_scales_of_activations_are_left_out(name: str, tmp_path: Path) -> None:
    """Products are of bf16 numbers."""
    writer, block, scales = SCALES[name]
    settings = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": block}
    wanted: dict[str, np.ndarray] = {}
    parts: Tensors = {}
    for tensor, values in random_tensors(CONFIG, 0).items():
        if "_proj" not in tensor:
            parts[tensor], wanted[tensor] = ("F32", values), values
            continue
        found, wanted[tensor] = static(writer(values), *scales)
        base = tensor.removesuffix(".weight")
        parts |= {f"{base}.{part}": value for part, value in found.items()}
    config = CONFIG | {"quantization_config": settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_tensors(tmp_path / "model.safetensors", parts)
    checkpoint = Checkpoint.open(tmp_path)
    program = fitted(load_program(config), checkpoint)
    assert set(checkpoint.names) == {name for weight in program.weights for name in weight.tensors}
    for tensor in (tensor for tensor in wanted if "_proj" in tensor):
        np.testing.assert_array_equal(checkpoint.tensor(tensor), to_bf16(wanted[tensor]), err_msg=tensor)


@pytest.mark.parametrize("kept", ["lm_head", "mlp", "norm", ""])
def test_tensors_are_cast_to_the_models_dtype(
    kept: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A head in float32, MLPs in float16, and a whole file in float32 under bfloat16, said once; norms are
    float32 in any case."""
    config = {k: v for k, v in CONFIG.items() if k != "torch_dtype"} | {"dtype": "bfloat16"}
    tensors = random_tensors(config, 0)
    tensors = {k: v if kept in k else to_bf16(v) for k, v in tensors.items()}
    write_safetensors(tmp_path / "model.safetensors", tensors, "float16" if kept == "mlp" else "float32")
    checkpoint = Checkpoint.open(tmp_path)
    program = fitted(load_program(config), checkpoint)
    lines = [r for r in caplog.records if "tensors_rounded" in r.getMessage()]
    assert [r.levelname for r in lines] == ([] if kept == "norm" else ["WARNING"])
    for weight in program.weights:
        for tensor in weight.tensors if weight.is_matrix else ():
            values = tensors[tensor]
            as_read = values.astype(np.float16) if kept == "mlp" and values.dtype == np.float32 else values
            expected = as_read if values.dtype == np.uint16 else to_bf16(as_read.astype(np.float32))
            np.testing.assert_array_equal(checkpoint.tensor(tensor), expected, err_msg=tensor)
