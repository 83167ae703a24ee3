"""Features of token rows, in pinned host memory: the step reads them there, and tells them there."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.sums import columns_of, read, source_operand, write_total
from firelane.backends.cuda.step.split_k import Source
from firelane.backends.cuda.step.tables import PARITY, TOKENS, StepTables


@triton.jit
def read_features_kernel(
    features,
    features_stride,
    features_rows,
    out,
    out_stride,
    counts,
    COUNT: tl.constexpr,
    PARITY: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row and BLOCK columns."""
    row = tl.program_id(0)
    if row >= tl.load(counts + COUNT):
        return
    row = row.to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    features += tl.load(counts + PARITY).to(tl.int64) * features_rows * features_stride
    values = tl.load(features + row * features_stride + columns, mask=mask, other=0.0)
    tl.store(out + row * out_stride + columns, values.to(out.dtype.element_ty), mask=mask)


@triton.jit
def tell_features_kernel(
    x,
    features,
    features_stride,
    features_rows,
    counts,
    COUNT: tl.constexpr,
    PARITY: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row and BLOCK columns."""
    row = tl.program_id(0)
    if row >= tl.load(counts + COUNT):
        return
    row = row.to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    values = read(x, row, columns, mask)
    write_total(x, values, row, columns, mask)
    features += tl.load(counts + PARITY).to(tl.int64) * features_rows * features_stride
    tl.store(features + row * features_stride + columns, values, mask=mask)


def read_features(features: Tensor, tables: StepTables, out: Tensor, *, max_rows: int) -> Launch:
    """out[t] = features[t] of the set of the step's parity, rounded to out's dtype. features: pinned float32
    [sets, token rows, width]; out: [rows, stride]."""
    return Launch(
        kernel=read_features_kernel,
        grid=(max_rows, -(-features.shape[2] // columns_of(features.shape[2]))),
        arguments={"out": out, "out_stride": out.stride(0), **_operands(features, tables)},
    )


def tell_features(x: Source, tables: StepTables, features: Tensor, *, max_rows: int) -> Launch:
    """features[t] = x[t], in the set of the step's parity; a split-K x is written to x.out besides. features:
    the columns for x of pinned float32 [sets, token rows, all columns]."""
    return Launch(
        kernel=tell_features_kernel,
        grid=(max_rows, -(-features.shape[2] // columns_of(features.shape[2]))),
        arguments={"x": source_operand(x), **_operands(features, tables)},
    )


def _operands(features: Tensor, tables: StepTables) -> dict[str, object]:
    width = features.shape[2]
    return {
        "features": features,
        "features_stride": features.stride(1),
        "features_rows": features.shape[1],
        "counts": tables.counts,
        "COUNT": TOKENS,
        "PARITY": PARITY,
        "WIDTH": width,
        "BLOCK": columns_of(width),
    }
