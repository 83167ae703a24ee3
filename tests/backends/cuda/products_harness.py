"""Products run in the interpreter, and what they have to give."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matrices_harness import coded_matrix, plain_matrix, true_values
from torch import Tensor

from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import round_up, segments
from firelane.backends.cuda.kernels.matmul import transpose
from firelane.backends.cuda.kernels.matmul.gated import gated_linear
from firelane.backends.cuda.kernels.matmul.linear import linear
from firelane.backends.cuda.kernels.matmul.linear_parts import linear_parts
from firelane.backends.cuda.step.tables import NUM_COUNTS, ROWS
from firelane.backends.cuda.weights.matrices import Matrix, PlainMatrix
from firelane.program.ops import SILU, Gate
from tests.backends.cuda.host_device import poison

FORMS = {"plain": plain_matrix, "coded": coded_matrix}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """x: [max_rows, stride], of which [:count, :k] are numbers and the rest is NaN."""

    x: Tensor
    count: int
    k: int

    @property
    def max_rows(self) -> int:
        return self.x.shape[0]

    @property
    def counts(self) -> Tensor:
        counts = torch.full((NUM_COUNTS,), 77, dtype=torch.int32)
        counts[ROWS] = self.count
        return counts

    @property
    def values(self) -> np.ndarray:
        return self.x[: self.count, : self.k].float().numpy()


def random_rows(
    count: int, k: int, *, max_rows: int | None = None, dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> Rows:
    """Row i has the same numbers whatever `count` is."""
    x = poison(torch.empty(max_rows or count, round_up(k + 1, 64), dtype=dtype))
    for i in range(count):
        generator = torch.Generator().manual_seed(1000 * seed + i)
        x[i, :k] = torch.randn(k, generator=generator).to(dtype)
    return Rows(x=x, count=count, k=k)


def output(max_rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return poison(torch.empty(max_rows, round_up(width, 64), dtype=dtype))


def run_linear(
    matrix: Matrix,
    rows: Rows,
    config: LinearConfig,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    **options: float,
) -> np.ndarray:
    """[count, matrix.rows]; whole, or from parts added up as their reader does. Nothing else is written."""
    run = _sum_of_parts if config.parts else _whole
    out = run(matrix, rows, config, bias, residual, **options)
    assert config.library or out[rows.count :].isnan().all()
    assert out[:, matrix.rows :].isnan().all()
    return out[: rows.count, : matrix.rows].numpy()


def run_gated(
    matrix: Matrix,
    rows: Rows,
    config: LinearConfig,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    gate: Gate = SILU,
) -> np.ndarray:
    """[count, matrix.rows / 2]. Nothing else is written."""
    width = matrix.rows // 2
    out = output(rows.max_rows, width, dtype)
    for launch in gated_linear(
        matrix,
        rows.x,
        out,
        bias=bias,
        gate=gate,
        counts=rows.counts,
        count=ROWS,
        max_rows=rows.max_rows,
        config=config,
        scratch=scratch_of(matrix),
        sums=poison(torch.empty(64, matrix.padded_rows)) if config.library else None,
        x_t=room_for_transposed(rows),
    ):
        launch.run()
    assert out[rows.count :].isnan().all()
    assert out[:, width:].isnan().all()
    return out[: rows.count, :width].float().numpy()


def scratch_of(matrix: Matrix) -> Tensor | None:
    """For a matrix that is decoded first, with room to spare."""
    if isinstance(matrix, PlainMatrix):
        return None
    return poison(torch.empty(matrix.padded_rows * matrix.padded_k + 100, dtype=torch.bfloat16))


def room_for_transposed(rows: Rows) -> Tensor:
    """A buffer for x transposed."""
    return poison(torch.empty(transpose.elements(rows.k, rows.max_rows) + 9, dtype=rows.x.dtype))


def gated_reference(
    x: np.ndarray, parts: Sequence[np.ndarray], bias: np.ndarray, function: Gate = SILU
) -> np.ndarray:
    """parts: bits of gate and up."""
    gate, up = (x @ true_values(bits).T for bits in parts)
    return function.apply(gate + bias[: gate.shape[1]], up + bias[gate.shape[1] :])


# Of a norm. A GPU's matrix units truncate where the interpreter rounds, which biases long sums.
BOUND = 2e-6 if os.environ["TRITON_INTERPRET"] == "1" else 1e-5


def assert_near(found: np.ndarray, wanted: np.ndarray, bound: float = BOUND) -> None:
    assert found.shape == wanted.shape
    assert np.isfinite(found).all()
    assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)


def _whole(
    matrix: Matrix,
    rows: Rows,
    config: LinearConfig,
    bias: Tensor | None,
    residual: Tensor | None,
    **options: float,
) -> Tensor:
    out = output(rows.max_rows, matrix.rows)
    for launch in linear(
        matrix,
        rows.x,
        out,
        bias=bias,
        residual=residual,
        counts=rows.counts,
        count=ROWS,
        max_rows=rows.max_rows,
        config=config,
        scratch=scratch_of(matrix),
        x_t=room_for_transposed(rows),
        **options,
    ):
        launch.run()
    return out


def _sum_of_parts(
    matrix: Matrix,
    rows: Rows,
    config: LinearConfig,
    bias: Tensor | None,
    residual: Tensor | None,
    *,
    scale: float = 1.0,
) -> Tensor:
    count = segments(matrix.rows, matrix.k) + 1
    parts = poison(torch.empty(count, rows.max_rows, round_up(matrix.rows, 64)))
    for launch in linear_parts(
        matrix,
        rows.x,
        parts,
        counts=rows.counts,
        count=ROWS,
        max_rows=rows.max_rows,
        config=config,
        x_t=room_for_transposed(rows),
    ):
        launch.run()
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    width = matrix.rows
    if bias is not None:
        total[:, :width] += bias
    total *= scale
    if residual is not None:
        total[:, :width] += residual[:, :width]
    return total
