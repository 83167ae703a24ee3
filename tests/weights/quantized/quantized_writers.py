"""Writers of quantised matrices, each from its format's specification, with the numbers that they stand for.

Each takes a float32 matrix [n, k] and gives tensors by what stands behind the module's name (with their
dtypes), and the matrix dequantised in float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.weights.files import to_bf16, write_raw

Tensors = dict[str, tuple[str, np.ndarray]]
Written = tuple[Tensors, np.ndarray]
GROUP = 32


def bf16(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(np.asarray(values, np.float32)).bfloat16().float().numpy()


def fp8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and the numbers that they are."""
    found = torch.from_numpy(np.clip(values, -448, 448).astype(np.float32)).to(torch.float8_e4m3fn)
    return found.view(torch.uint8).numpy(), found.float().numpy()


def fp8_block(values: np.ndarray, block: int = 128) -> Written:
    """DeepSeek's: a scale for each block of 128 rows and columns; those at the edges are smaller."""
    n, k = values.shape
    codes, out = np.empty((n, k), np.uint8), np.empty((n, k), np.float32)
    scales = np.empty((-(-n // block), -(-k // block)), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = np.s_[i * block : (i + 1) * block, j * block : (j + 1) * block]
            scales[i, j] = np.abs(values[at]).max() / 448
            codes[at], numbers = fp8(values[at] / scales[i, j])
            out[at] = numbers * scales[i, j]
    return {"weight": ("F8_E4M3", codes), "weight_scale_inv": ("F32", scales)}, out


def fp8_rows(values: np.ndarray) -> Written:
    """compressed-tensors' float-quantized, a bf16 scale a row."""
    scales = bf16(np.abs(values).max(axis=1, keepdims=True) / 448)
    codes, numbers = fp8(values / scales)
    tensors: Tensors = {
        "weight": ("F8_E4M3", codes),
        "weight_scale": ("BF16", to_bf16(scales)),
        "input_scale": ("F32", np.ones((1,), np.float32)),
    }
    return tensors, numbers * scales


def fp8_tensor(values: np.ndarray) -> Written:
    """One scale for all."""
    scale = np.float32(np.abs(values).max() / 448)
    codes, numbers = fp8(values / scale)
    return {"weight": ("F8_E4M3", codes), "weight_scale": ("F32", np.array(scale))}, numbers * scale


def int8_rows(values: np.ndarray) -> Written:
    """compressed-tensors' int-quantized."""
    scales = bf16(np.abs(values).max(axis=1, keepdims=True) / 127)
    codes = np.clip(np.round(values / scales), -128, 127).astype(np.int8)
    return {"weight": ("I8", codes), "weight_scale": ("BF16", to_bf16(scales))}, codes * scales


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Neighbours of the last axis in words of 32 bits, the first in the lowest."""
    each = 32 // bits
    padded = np.pad(codes.astype(np.uint32), [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    grouped = padded.reshape(*padded.shape[:-1], -1, each)
    found = np.zeros(grouped.shape[:-1], np.uint32)
    for i in range(each):
        found |= grouped[..., i] << np.uint32(bits * i)
    return found.view(np.int32)


def _grouped(values: np.ndarray, group: int) -> np.ndarray:
    return values.reshape(len(values), -1, group)


def packed(values: np.ndarray, bits: int = 4, group: int = GROUP, *, zeros: bool = False) -> Written:
    """compressed-tensors' pack-quantized: code + half of the range, in words; zero points packed by rows."""
    half, groups = 1 << (bits - 1), _grouped(values, group)
    low, high = groups.min(axis=2), groups.max(axis=2)
    if zeros:
        scales = bf16(np.maximum(high - low, 1e-6) / (2 * half - 1))
        points = np.clip(np.round(-low / scales) - half, -half, half - 1)
    else:
        scales = bf16(np.maximum(np.abs(low), np.abs(high)) / (half - 1))
        points = np.zeros_like(scales)
    codes = np.clip(np.round(groups / scales[..., None]) + points[..., None], -half, half - 1)
    tensors: Tensors = {
        "weight_packed": ("I32", words((codes + half).reshape(values.shape), bits)),
        "weight_scale": ("BF16", to_bf16(scales)),
        "weight_shape": ("I64", np.array(values.shape, np.int64)),
    }
    if zeros:
        tensors["weight_zero_point"] = ("I32", words((points + half).T, bits).T.copy())
    return tensors, ((codes - points[..., None]) * scales[..., None]).reshape(values.shape).astype(np.float32)


def _by_inputs(values: np.ndarray, group: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes and zero points of 0 .. most, and float16 scales, of the transposed matrix [k, n]."""
    grouped = values.T.reshape(-1, group, len(values))
    low, high = grouped.min(axis=1), grouped.max(axis=1)
    scales = (np.maximum(high - low, 1e-6) / most).astype(np.float16).astype(np.float32)
    points = np.clip(np.round(-low / scales), 1, most)
    codes = np.clip(np.round(grouped / scales[:, None]) + points[:, None], 0, most)
    return codes, points, scales


def awq(values: np.ndarray, group: int = GROUP) -> Written:
    """Eight outputs a word, in the order that its kernels want."""
    codes, points, scales = _by_inputs(values, group, 15)

    def ordered(numbers: np.ndarray) -> np.ndarray:
        return words(numbers.reshape(len(numbers), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]], 4)[..., 0]

    tensors: Tensors = {
        "qweight": ("I32", ordered(codes.reshape(-1, len(values)))),
        "qzeros": ("I32", ordered(points)),
        "scales": ("F16", scales.astype(np.float16)),
    }
    return tensors, ((codes - points[:, None]) * scales[:, None]).reshape(-1, len(values)).T.copy()


def gptq(values: np.ndarray, bits: int = 4, group: int = GROUP, *, version: int = 1) -> Written:
    """Inputs a word; zero points stored less one in version 1."""
    codes, points, scales = _by_inputs(values, group, (1 << bits) - 1)
    tensors: Tensors = {
        "qweight": ("I32", words(codes.reshape(-1, len(values)).T, bits).T.copy()),
        "qzeros": ("I32", words(points - (version == 1), bits)),
        "scales": ("F16", scales.astype(np.float16)),
        "g_idx": ("I32", (np.arange(values.shape[1]) // group).astype(np.int32)),
    }
    return tensors, ((codes - points[:, None]) * scales[:, None]).reshape(-1, len(values)).T.copy()


def gptq_ordered(values: np.ndarray, order: np.ndarray, bits: int = 4, group: int = GROUP) -> Written:
    """Groups of inputs as `order` has them side by side (desc_act); inputs stay where they are."""
    codes, points, scales = _by_inputs(values[:, order], group, (1 << bits) - 1)
    numbers = ((codes - points[:, None]) * scales[:, None]).reshape(-1, len(values))
    own, found = np.empty_like(numbers), np.empty_like(numbers)
    own[order], found[order] = codes.reshape(numbers.shape), numbers
    groups = np.empty(len(order), np.int32)
    groups[order] = np.arange(len(order)) // group
    tensors: Tensors = {
        "qweight": ("I32", words(own.T, bits).T.copy()),
        "qzeros": ("I32", words(points - 1, bits)),
        "scales": ("F16", scales.astype(np.float16)),
        "g_idx": ("I32", groups),
    }
    return tensors, found.T.copy()


def packed_ordered(values: np.ndarray, order: np.ndarray, *, zeros: bool) -> Written:
    """compressed-tensors' activation ordering by groups."""
    tensors, of_sorted = packed(values[:, order], zeros=zeros)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    codes = tensors["weight_packed"][1].view(np.uint32)[..., None] >> shifts & np.uint32(15)
    own, numbers = np.empty(values.shape, np.uint32), np.empty_like(of_sorted)
    own[:, order] = codes.reshape(values.shape)
    numbers[:, order] = of_sorted
    groups = np.empty(len(order), np.int32)
    groups[order] = np.arange(len(order)) // GROUP
    return tensors | {"weight_packed": ("I32", words(own, 4)), "weight_g_idx": ("I32", groups)}, numbers


def _float4(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and numbers of the nearest four-bit floats."""
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    nearest = np.abs(np.abs(values)[..., None] - magnitudes).argmin(axis=-1)
    sign = values < 0
    return (nearest | sign << 3).astype(np.uint8), np.where(sign, -1, 1) * magnitudes[nearest]


def _bytes(codes: np.ndarray) -> np.ndarray:
    return codes[..., 0::2] | codes[..., 1::2] << 4


def mxfp4(values: np.ndarray) -> Written:
    """compressed-tensors' mxfp4-pack-quantized."""
    groups = _grouped(values, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(axis=2))).astype(np.int32) - 2
    scales = np.exp2(exponents).astype(np.float32)[..., None]
    codes, numbers = _float4(groups / scales)
    tensors: Tensors = {
        "weight_packed": ("U8", _bytes(codes.reshape(values.shape))),
        "weight_scale": ("U8", (exponents + 127).astype(np.uint8)),
    }
    return tensors, (numbers * scales).reshape(values.shape).astype(np.float32)


def nvfp4(values: np.ndarray, *, divides: bool) -> Written:
    """Two levels of scales: compressed-tensors divides by the second, ModelOpt multiplies with it."""
    groups = _grouped(values, 16)
    second = np.float32(np.abs(values).max() / (6 * 448))
    first, whole = fp8(np.abs(groups).max(axis=2) / 6 / second)
    stored = np.array([1 / second], np.float32) if divides else np.array(second, np.float32)
    scales = whole / stored if divides else whole * stored
    codes, numbers = _float4(groups / np.maximum(scales, 1e-9)[..., None])
    key = "weight_packed" if divides else "weight"
    tensors: Tensors = {
        key: ("U8", _bytes(codes.reshape(values.shape))),
        "weight_scale": ("F8_E4M3", first),
        "weight_global_scale" if divides else "weight_scale_2": ("F32", stored),
    }
    return tensors, (numbers * scales[..., None]).reshape(values.shape).astype(np.float32)


Config = dict[str, Any]
WEIGHTS = {"num_bits": 4, "type": "int", "group_size": GROUP}


def _compressed(form: str, **weights: Any) -> Config:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS | weights}},
        "ignore": ["lm_head"],
    }


FORMATS: dict[str, tuple[Callable[[np.ndarray], Written], Config]] = {
    "fp8, blocks": (fp8_block, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "fp8, rows": (fp8_rows, _compressed("float-quantized", num_bits=8)),
    "fp8, one scale": (fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "int8, rows": (int8_rows, _compressed("int-quantized", num_bits=8)),
    "int4": (packed, _compressed("pack-quantized")),
    "int4 with zero points": (
        lambda values: packed(values, zeros=True),
        _compressed("pack-quantized", symmetric=False),
    ),
    "int8 in words": (lambda values: packed(values, 8), _compressed("pack-quantized", num_bits=8)),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}),
    "gptq, version 2": (
        lambda values: gptq(values, version=2),
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
    ),
    "gptq, 8 bits": (
        lambda values: gptq(values, 8),
        {"quant_method": "gptq", "bits": 8, "group_size": GROUP, "desc_act": False},
    ),
    "mxfp4": (mxfp4, _compressed("mxfp4-pack-quantized")),
    "nvfp4, divided": (lambda values: nvfp4(values, divides=True), _compressed("nvfp4-pack-quantized")),
    "nvfp4, multiplied": (
        lambda values: nvfp4(values, divides=False),
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ),
}


def write_tensors(path: Path, tensors: Tensors) -> None:
    """A safetensors file with these dtypes."""
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    data = b"".join(np.ascontiguousarray(values).tobytes() for _, values in tensors.values())
    write_raw(path, json.dumps(header).encode(), data)
