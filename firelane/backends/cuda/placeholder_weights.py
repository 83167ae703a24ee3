"""Placeholder weights without memory: enough to lower and compile while the real ones are loaded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from firelane.backends.cuda.kv_pages import DTYPES
from firelane.backends.cuda.matrices import CodedMatrix, Escapes, Matrix, PlainMatrix
from firelane.backends.cuda.placement import is_matrix, padded_rows
from firelane.backends.cuda.product_plan import ProductPlan
from firelane.backends.cuda.shapes import K_TILE, ROW_BLOCK, round_up
from firelane.backends.cuda.weights import DeviceWeights
from firelane.program.values import DType, Weight


def placeholder_weights(plan: ProductPlan) -> DeviceWeights:
    """Every weight of the plan's program in the form that the plan takes it to have."""
    weights = plan.program.weights
    matrices = {w.name: _matrix(w, is_coded=plan.is_coded) for w in weights if is_matrix(w)}
    vectors = {w.name: _meta(w.height, dtype=torch.float32) for w in weights if not is_matrix(w)}
    return DeviceWeights(matrices=matrices, vectors=vectors)


def _matrix(weight: Weight, *, is_coded: Callable[[Weight], bool]) -> Matrix:
    rows, k = weight.height, weight.k
    height, width = padded_rows(weight), round_up(k, K_TILE)
    dtype = DTYPES[weight.dtype]
    blocks = height // ROW_BLOCK
    found = 2 if weight.dtype is DType.BF16 and k % K_TILE == 0 else 1  # most matrices have some
    escapes = Escapes(starts=_meta(blocks + 1), where=_meta(found), values=_meta(found, dtype=dtype))
    if not is_coded(weight):
        return PlainMatrix(data=_meta(height, width, dtype=dtype), rows=rows, k=k, escapes=escapes)
    return CodedMatrix(
        low=_meta(height, width, dtype=torch.uint8),
        codes=_meta(height, width // 2, dtype=torch.uint8),
        bases=_meta(blocks, dtype=torch.uint8),
        rows=rows,
        k=k,
        escapes=escapes,
    )


def _meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
