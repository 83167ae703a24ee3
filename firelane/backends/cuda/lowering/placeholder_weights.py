"""Placeholder weights without memory: enough to lower and compile while the real ones are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK, round_up
from firelane.backends.cuda.lowering.product_plan import ProductPlan
from firelane.backends.cuda.step.kv_pages import DTYPES
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.matrices import (
    HALF_BYTES,
    CodedMatrix,
    Escapes,
    Matrix,
    PlainMatrix,
    QuantisedForm,
    QuantisedMatrix,
)
from firelane.backends.cuda.weights.placement import is_matrix, padded_rows
from firelane.backends.cuda.weights.quantised_weights import NOTHING_STORED, Stored
from firelane.program.values import DType, Weight
from firelane.weights.formats.formats import LEVELS_BLOCK


def placeholder_weights(plan: ProductPlan, stored: Mapping[str, Stored] = NOTHING_STORED) -> DeviceWeights:
    """Every weight of the plan's program in the form that the plan takes it to have. stored: weights that
    keep their codes."""
    weights = plan.program.weights
    matrices = {
        w.name: _quantised(w, stored[w.name]) if w.name in stored else _matrix(w, is_coded=plan.is_coded)
        for w in weights
        if is_matrix(w)
    }
    vectors = {w.name: _meta(w.height, dtype=torch.float32) for w in weights if not is_matrix(w)}
    return DeviceWeights(matrices=matrices, vectors=vectors)


def quantised_placeholder(form: QuantisedForm, height: int, rows: int, k: int) -> QuantisedMatrix:
    """A matrix of that form; height: its rows with padding."""
    blocks, width = height // ROW_BLOCK, round_up(k, K_TILE)
    of_groups = (blocks, width // form.group_size, ROW_BLOCK)
    return QuantisedMatrix(
        data=_meta(height, width // 2 if form.numbers in HALF_BYTES else width, dtype=torch.uint8),
        scales=_meta(*of_groups, dtype=form.scales),
        minima=None if form.minima is None else _meta(*of_groups, dtype=form.minima),
        units=_meta(
            blocks, 1 + (form.minima is not None), width // LEVELS_BLOCK, ROW_BLOCK, dtype=torch.float16
        )
        if form.scales is torch.int8
        else None,
        bounds=_meta(blocks, 2) if form.bounds else None,
        numbers=form.numbers,
        rows=rows,
        k=k,
        escapes=_escapes(height, 1 + form.bounds, torch.bfloat16),
    )


def _quantised(weight: Weight, stored: Stored) -> QuantisedMatrix:
    return quantised_placeholder(stored.form, padded_rows(weight), weight.height, weight.k)


def _escapes(height: int, found: int, dtype: torch.dtype) -> Escapes:
    starts = _meta(height // ROW_BLOCK + 1)
    return Escapes(starts=starts, where=_meta(found), values=_meta(found, dtype=dtype))


def _matrix(weight: Weight, *, is_coded: Callable[[Weight], bool]) -> Matrix:
    rows, k = weight.height, weight.k
    height, width = padded_rows(weight), round_up(k, K_TILE)
    dtype = DTYPES[weight.dtype]
    found = 2 if weight.dtype is DType.BF16 and k % K_TILE == 0 else 1  # most matrices have some
    escapes = _escapes(height, found, dtype)
    if not is_coded(weight):
        return PlainMatrix(data=_meta(height, width, dtype=dtype), rows=rows, k=k, escapes=escapes)
    return CodedMatrix(
        low=_meta(height, width, dtype=torch.uint8),
        codes=_meta(height, width // 2, dtype=torch.uint8),
        bases=_meta(height // ROW_BLOCK, dtype=torch.uint8),
        rows=rows,
        k=k,
        escapes=escapes,
    )


def _meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
