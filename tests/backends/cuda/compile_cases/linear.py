"""Products at the shapes of an 8 B model, in the configs that the rule gives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.linear_config import LinearConfig, choose
from firelane.backends.cuda.device.shapes import ROW_BLOCK, round_up, segments
from firelane.backends.cuda.kernels.matmul.gated import gated_linear
from firelane.backends.cuda.kernels.matmul.linear import linear
from firelane.backends.cuda.kernels.matmul.linear_parts import linear_parts
from firelane.backends.cuda.kernels.matmul.tiling import decode_first
from firelane.backends.cuda.kernels.matmul.transpose import elements, transpose
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from firelane.backends.cuda.weights.matrices import (
    FP4,
    FP8,
    INT4,
    INT8,
    CodedMatrix,
    Escapes,
    Matrix,
    PlainMatrix,
    QuantisedMatrix,
)
from firelane.program.ops import GELU_TANH, SILU, Gate
from tests.backends.cuda.compile_driver import (
    ASYNC_COPY,
    ONLY_WGMMA,
    WGMMA,
    WIDE_LOADS,
    Case,
    untouched,
)

F32, I32, U8, I8 = torch.float32, torch.int32, torch.uint8, torch.int8
FULL = (WGMMA, ONLY_WGMMA, ASYNC_COPY, WIDE_LOADS)


def cases() -> Iterator[Case]:
    attention, mlp = (4096, 4096), (28672, 4096)
    for max_rows in (1, 32, 64, 128, 256, 512, 8192):
        yield product(plain(*attention), max_rows)
        yield product(plain(*mlp), max_rows, gated=True)
    for max_rows in (1, 32, 64, 256):
        yield product(coded(*attention), max_rows)
        yield product(coded(*mlp), max_rows, gated=True)
    yield from _quantised()
    yield product(plain(128256, 4096), 256)
    yield from _scaled_and_capped()
    yield from _gates()
    yield product(plain(331, 1000), 64)
    yield product(plain(331, 1000, dtype=F32), 64, needs=())
    yield Case(name="transpose 8192 x 4096", launch=transposed(8192, 4096), needs=(WIDE_LOADS,))
    yield Case(name="decode 4096 x 4096", launch=decode(coded(*attention)), needs=(WIDE_LOADS,))


def _scaled_and_capped() -> Iterator[Case]:
    """Granite's residuals, and the heads of Granite and Gemma 2."""
    yield product(plain(4096, 12800), 8192, scale=0.22)
    yield product(plain(49155, 4096), 256, scale=1 / 16)
    yield product(plain(256000, 3584), 256, softcap=30.0)


def _quantised() -> Iterator[Case]:
    """Q4_0, AWQ, Q4_K, Q6_K, what mixes those two, fp8 with a scale a row, NVFP4."""
    forms: tuple[dict[str, Any], ...] = (
        {"numbers": INT4, "group_size": 32},
        {"numbers": INT4, "group_size": 128, "minima": True},
        {"numbers": INT4, "group_size": 32, "scales": I8, "minima": True, "bounds": True},
        {"numbers": INT8, "group_size": 16, "scales": I8},
        {"numbers": INT8, "group_size": 32, "scales": F32, "minima": True, "bounds": True},
        {"numbers": FP8, "group_size": 4096, "scales": F32},
        {"numbers": FP4, "group_size": 16, "scales": F32},
    )
    for form in forms:
        for max_rows in (1, 64, 256):
            yield product(quantised(4096, 4096, **form), max_rows)
            yield product(quantised(28672, 4096, **form), max_rows, gated=True)
        matrix = quantised(4096, 4096, **form)
        launch = decode_first(matrix, untouched(4096, 4096))[0]
        yield Case(name=f"decode {_name(matrix, gated=False)}", launch=launch)


def _gates() -> Iterator[Case]:
    """Yield the gated products of Gemma 2 and of one of gpt-oss's experts."""
    limits = Gate(alpha=1.702, limit=7.0, up_offset=1.0)
    for max_rows in (1, 64, 128, 256, 8192):
        yield product(plain(28672, 3584), max_rows, gated=True, gate=GELU_TANH)
        yield product(plain(5760, 2880), max_rows, gated=True, gate=limits)
    yield product(coded(28672, 3584), 256, gated=True, gate=GELU_TANH)


def product(
    matrix: Matrix, max_rows: int, *, gated: bool = False, needs: tuple[str, ...] = FULL, **options: Any
) -> Case:
    """options: of the op; parts have none."""
    config = choose(
        matrix_rows=matrix.rows,
        k=matrix.k,
        gated=gated,
        max_rows=max_rows,
        is_coded=not isinstance(matrix, PlainMatrix),
        table=None,
    )
    config = config if gated or not options else replace(config, parts=False)
    launch = (_gated if gated else _linear)(matrix, max_rows, config, **options)
    shown = "".join(f", {name} {_shown(value)}" for name, value in options.items())
    return Case(
        name=f"{_name(matrix, gated)}, {max_rows} rows, {_tile(config)}{shown}", launch=launch, needs=needs
    )


def _shown(option: float | Gate) -> str:
    return option.kind if isinstance(option, Gate) else f"{option:.3g}"


def transposed(max_rows: int, k: int) -> Launch:
    x, counts = untouched(max_rows, k), untouched(NUM_COUNTS, dtype=I32)
    return transpose(x, _transposed(x), k=k, counts=counts, count=TOKENS, max_rows=max_rows)[0]


def decode(matrix: CodedMatrix) -> Launch:
    return decode_first(matrix, untouched(matrix.low.numel()))[0]


def plain(rows: int, k: int, dtype: torch.dtype = torch.bfloat16) -> PlainMatrix:
    data = untouched(round_up(rows, ROW_BLOCK), round_up(k, 128), dtype=dtype)
    return PlainMatrix(data=data, rows=rows, k=k, escapes=_escapes(len(data), dtype))


def coded(rows: int, k: int) -> CodedMatrix:
    return CodedMatrix(
        low=untouched(rows, k, dtype=U8),
        codes=untouched(rows, k // 2, dtype=U8),
        bases=untouched(rows // ROW_BLOCK, dtype=U8),
        rows=rows,
        k=k,
        escapes=_escapes(rows, torch.bfloat16),
    )


def quantised(
    rows: int,
    k: int,
    *,
    numbers: str,
    group_size: int,
    scales: torch.dtype = torch.float16,
    minima: bool = False,
    bounds: bool = False,
) -> QuantisedMatrix:
    blocks, width = rows // ROW_BLOCK, round_up(k, 128)
    of_groups = (blocks, width // group_size, ROW_BLOCK)
    return QuantisedMatrix(
        data=untouched(rows, width // 2 if numbers in (INT4, FP4) else width, dtype=U8),
        scales=untouched(*of_groups, dtype=scales),
        minima=untouched(*of_groups, dtype=scales) if minima else None,
        units=untouched(blocks, 1 + minima, width // 256, ROW_BLOCK, dtype=torch.float16)
        if scales is I8
        else None,
        bounds=untouched(blocks, 2, dtype=I32) if bounds else None,
        numbers=numbers,
        rows=rows,
        k=k,
        escapes=_escapes(rows, torch.bfloat16),
    )


def _linear(matrix: Matrix, max_rows: int, config: LinearConfig, **options: float) -> Launch:
    x, counts = _x(matrix, max_rows), untouched(NUM_COUNTS, dtype=I32)
    width = round_up(matrix.rows, 64)
    if config.parts:
        parts = untouched(segments(matrix.rows, matrix.k) + 1, max_rows, width, dtype=F32)
        return linear_parts(
            matrix,
            x,
            parts,
            counts=counts,
            count=TOKENS,
            max_rows=max_rows,
            config=config,
            x_t=_transposed(x),
        )[-1]
    return linear(
        matrix,
        x,
        untouched(max_rows, width, dtype=F32),
        bias=None,
        residual=untouched(max_rows, width, dtype=F32),
        counts=counts,
        count=TOKENS,
        max_rows=max_rows,
        config=config,
        x_t=_transposed(x),
        **options,
    )[-1]


def _gated(matrix: Matrix, max_rows: int, config: LinearConfig, gate: Gate = SILU) -> Launch:
    x = _x(matrix, max_rows)
    return gated_linear(
        matrix,
        x,
        untouched(max_rows, matrix.rows // 2),
        bias=None,
        gate=gate,
        counts=untouched(NUM_COUNTS, dtype=I32),
        count=TOKENS,
        max_rows=max_rows,
        config=config,
        x_t=_transposed(x),
    )[-1]


def _x(matrix: Matrix, max_rows: int) -> torch.Tensor:
    return untouched(max_rows, round_up(matrix.k, 64), dtype=matrix.escapes.values.dtype)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return untouched(elements(x.shape[1], x.shape[0]), dtype=x.dtype)


def _escapes(rows: int, dtype: torch.dtype) -> Escapes:
    starts = untouched(rows // ROW_BLOCK + 1, dtype=I32)
    return Escapes(starts=starts, where=untouched(999, dtype=I32), values=untouched(999, dtype=dtype))


def _name(matrix: Matrix, gated: bool) -> str:
    match matrix:
        case PlainMatrix():
            form = str(matrix.data.dtype).removeprefix("torch.")
        case CodedMatrix():
            form = "coded"
        case QuantisedMatrix():
            has = (matrix.minima is not None, matrix.bounds is not None)
            extras = "".join(
                f", {name}" for name, here in zip(("minima", "bounds"), has, strict=True) if here
            )
            form = f"{matrix.numbers} by {matrix.group_size}{extras}"
    return f"{'gated ' if gated else ''}{form} {matrix.rows} x {matrix.k}"


def _tile(config: LinearConfig) -> str:
    tile = f"{config.features} x {config.row_tile} x {config.k_tile}"
    return f"{tile}, {config.warps} warps, {config.stages} stages{', parts' if config.parts else ''}"
