"""Codes of floats whose scales are too large for the decode in registers (kernels/quantised_ptx.py): their
numbers are made once, when the matrix is loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.weights.matrices import FP4, FP8
from firelane.weights.quantized.numbers import E2M1

SCALE_LIMITS = {FP8: 2.0**8, FP4: 2.0**2}
"""By numbers: scales below are finite, too, when they are multiplied by what the decode leaves out."""


def is_decodable(numbers: str, scales: Tensor) -> bool:
    """Whether kernels can decode codes with these scales; NaN is told by what is decoded."""
    return numbers not in SCALE_LIMITS or not bool((scales.abs() >= SCALE_LIMITS[numbers]).any())


def write_numbers(data: Tensor, scales: Tensor, numbers: str, out: Tensor) -> None:
    """Into out, bf16 [rows, k]. data: as of a QuantisedMatrix; scales: float32 [rows, groups]."""
    groups = scales.shape[1]
    for first in range(0, len(out), ROW_BLOCK):
        here = slice(first, first + ROW_BLOCK)
        values = _numbers(data[here], numbers).view(-1, groups, out.shape[1] // groups)
        out[here] = (values * scales[here][:, :, None]).view(-1, out.shape[1]).to(out.dtype)


def _numbers(data: Tensor, numbers: str) -> Tensor:
    """float32 [rows, k]."""
    if numbers == FP8:
        return data.view(torch.float8_e4m3fn).to(torch.float32)
    tiles = data.view(len(data), -1, 1, K_TILE // 2)
    codes = torch.cat([tiles & 15, tiles >> 4], dim=2).reshape(len(data), -1)
    return torch.from_numpy(E2M1).to(data.device)[codes.to(torch.int64)]
