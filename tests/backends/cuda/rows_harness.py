"""Values as kernels get them: rows with room behind them, whole or in parts, all that is unused poisoned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firelane.backends.cuda.device.shapes import round_up
from firelane.backends.cuda.step.split_k import SplitKSum
from firelane.backends.cuda.step.tables import StepTables
from firelane.contract import StepLimits
from tests.backends.cuda.host_device import HostDevice, poison

TILE_TOKENS = 16


def limits(**changes: Any) -> StepLimits:
    settings: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_output_rows": 16,
        "max_model_len": 300,
        "block_size": 16,
        "num_blocks": 24,
    }
    return StepLimits(**{**settings, **changes})


def poisoned_tables(sizes: StepLimits) -> StepTables:
    """Device tables as full of garbage as nothing but a step's first kernel may leave them."""
    tables = StepTables.allocate(sizes, tile_tokens=TILE_TOKENS, device=HostDevice())
    for name in ("counts", "chunks", "rows", "token_ids", "positions", "token_chunk", "block_tables"):
        poison(getattr(tables, name))
    poison(tables.kv_splits)
    poison(tables.tiles)
    return tables


def rows_of(max_rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[max_rows, stride], poisoned."""
    return poison(torch.empty(max_rows, round_up(width, 64), dtype=dtype))


def filled(values: np.ndarray, max_rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """`values` [rows, width] as the first rows of max_rows."""
    rows = rows_of(max_rows, values.shape[1], dtype)
    rows[: len(values), : values.shape[1]] = torch.from_numpy(values).to(dtype)
    return rows


def random_split_k(
    rng: np.random.Generator, rows: int, width: int, *, max_rows: int, count: int = 3, whole: bool = True
) -> SplitKSum:
    """whole: with bias, residual and a place for the sum."""
    parts = poison(torch.empty(count, max_rows + 3, round_up(width, 64)))
    parts[:, :rows, :width] = torch.from_numpy(rng.standard_normal((count, rows, width)).astype(np.float32))
    split_k = SplitKSum(parts=parts, width=width, bias=None, residual=None, out=None)
    if not whole:
        return split_k
    return replace(
        split_k,
        bias=torch.from_numpy(rng.standard_normal(width).astype(np.float32)),
        residual=filled(rng.standard_normal((rows, width)).astype(np.float32), max_rows),
        out=rows_of(max_rows, width),
    )


def sum_of(split_k: SplitKSum, rows: int) -> np.ndarray:
    """float32 [rows, width], added in the order that is promised."""
    parts = split_k.parts[:, :rows, : split_k.width].numpy()
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    if split_k.bias is not None:
        total += split_k.bias.numpy()
    total *= np.float32(split_k.scale)
    if split_k.residual is not None:
        total += split_k.residual[:rows, : split_k.width].numpy()
    return total


def assert_untouched(tensor: Tensor, rows: int, width: int) -> None:
    """All but the first `rows` rows and `width` columns is still poison."""
    fresh = poison(torch.empty_like(tensor))
    fresh[:rows, :width] = tensor[:rows, :width]
    assert torch.equal(bits(tensor), bits(fresh))


def bits(tensor: Tensor) -> Tensor:
    """So that NaN equals NaN."""
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
