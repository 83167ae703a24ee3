"""Routing, and products with experts' matrices: layers of Qwen3-30B-A3B, gpt-oss-120b, Llama 4 Scout and
DeepSeek V3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.linear_config import LinearConfig, ProductShape, by_rule
from firelane.backends.cuda.device.shapes import round_up
from firelane.backends.cuda.kernels.matmul.experts import expert_gated, expert_linear
from firelane.backends.cuda.kernels.matmul.group_rows import group_rows
from firelane.backends.cuda.kernels.matmul.tiling import fitted
from firelane.backends.cuda.kernels.rows.route import route
from firelane.backends.cuda.step.row_groups import RowGroups, most_tiles
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from firelane.backends.cuda.weights.matrices import FP4, INT4, Matrix
from firelane.program.ops import SILU, Gate, Groups, Route
from firelane.program.values import DType, Rows, Value, Weight
from tests.backends.cuda.compile_cases.linear import coded, plain, quantised
from tests.backends.cuda.compile_cases.rows import split_k
from tests.backends.cuda.compile_driver import ASYNC_COPY, ONLY_WGMMA, WGMMA, WIDE_LOADS, Case, untouched
from tests.backends.cuda.host_device import HostDevice

F32, I32 = torch.float32, torch.int32
FORMS: dict[str, Callable[[int, int], Matrix]] = {
    "plain": plain,
    "coded": coded,
    "int4": partial(quantised, numbers=INT4, group_size=32),
    "mxfp4": partial(quantised, numbers=FP4, group_size=32, scales=torch.uint8),
}
FULL = (WGMMA, ONLY_WGMMA, ASYNC_COPY, WIDE_LOADS)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A layer of it. hidden: width of the stream; inner: of one expert."""

    name: str
    experts: int
    picks: int
    hidden: int
    inner: int
    gate: Gate = SILU
    groups: Groups | None = None
    has_bias: bool = False
    before_gate: bool = False


QWEN3 = Model(name="Qwen3-30B-A3B", experts=128, picks=8, hidden=2048, inner=768)
GPT_OSS = Model(
    name="gpt-oss-120b",
    experts=128,
    picks=4,
    hidden=2880,
    inner=2880,
    gate=Gate(alpha=1.702, limit=7.0, up_offset=1.0),
    has_bias=True,
)
SCOUT = Model(name="Scout", experts=16, picks=1, hidden=5120, inner=8192, before_gate=True)
DEEPSEEK = Model(
    name="DeepSeek V3",
    experts=256,
    picks=8,
    hidden=7168,
    inner=2048,
    groups=Groups(count=8, keep=4, best=2),
)


def cases() -> Iterator[Case]:
    for model in (QWEN3, GPT_OSS, SCOUT, DEEPSEEK):
        yield Case(name=f"route {model.name}", launch=_route(model))
        yield Case(name=f"group rows {model.name}, 2048 rows", launch=_group(model, 2048))
    yield Case(name="group rows Qwen3-30B-A3B, 1 row", launch=_group(QWEN3, 1))
    for rows in (1, 512, 2048):
        yield from _products(QWEN3, rows, "plain")
        yield from _products(QWEN3, rows, "coded")
        yield from _products(GPT_OSS, rows, "plain")
        yield from _products(GPT_OSS, rows, "mxfp4")
        yield from _products(QWEN3, rows, "int4")
    for rows in (1, 2048):
        yield from _products(SCOUT, rows, "plain")
        yield from _products(SCOUT, rows, "coded")
    yield from _products(DEEPSEEK, 2048, "coded")


def _products(model: Model, rows: int, form: str) -> Iterator[Case]:
    for gated in (True, False):
        out, k = (2 * model.inner, model.hidden) if gated else (model.hidden, model.inner)
        config = _config(model, rows, (out, k), gated=gated, is_coded=form != "plain")
        matrix = FORMS[form](model.experts * out, k)
        launch = (_gated if gated else _linear)(model, matrix, rows, config)
        tile = f"{config.row_tile} x {config.k_tile}, {config.stages} stages"
        name = f"{'gated ' if gated else ''}{form} {model.name}, {rows} rows, {tile}"
        yield Case(name=name, launch=launch, needs=FULL)


def _config(model: Model, rows: int, shape: tuple[int, int], *, gated: bool, is_coded: bool) -> LinearConfig:
    config = by_rule(
        ProductShape(
            rows=shape[0],
            k=shape[1],
            gated=gated,
            max_rows=rows,
            is_coded=is_coded,
            experts=model.experts,
            picks=model.picks,
        )
    )
    padded = round_up(shape[0] // (1 + gated), 64)
    return fitted(config, is_coded=is_coded, dtype=torch.bfloat16, padded_rows=padded)


def _gated(model: Model, matrix: Matrix, rows: int, config: LinearConfig) -> Launch:
    return expert_gated(
        matrix,
        untouched(rows, round_up(model.hidden, 64)),
        untouched(rows, round_up(model.picks * model.inner, 64)),
        groups=_groups(model, rows, config.row_tile),
        experts=model.experts,
        picks=model.picks,
        bias=untouched(matrix.rows, dtype=F32) if model.has_bias else None,
        shares=_shares(rows) if model.before_gate else None,
        gate=model.gate,
        config=config,
        max_rows=rows,
    )


def _linear(model: Model, matrix: Matrix, rows: int, config: LinearConfig) -> Launch:
    return expert_linear(
        matrix,
        untouched(rows, round_up(model.picks * model.inner, 64)),
        untouched(model.picks, rows, round_up(model.hidden, 64), dtype=F32),
        groups=_groups(model, rows, config.row_tile),
        experts=model.experts,
        picks=model.picks,
        bias=untouched(matrix.rows, dtype=F32) if model.has_bias else None,
        shares=None if model.before_gate else _shares(rows),
        config=config,
        max_rows=rows,
    )


def _groups(model: Model, rows: int, row_tile: int) -> RowGroups:
    tiles = most_tiles(rows=rows, picks=model.picks, experts=model.experts, row_tile=row_tile)
    return RowGroups.allocate(rows * model.picks, tiles, HostDevice())


def _shares(rows: int) -> Tensor:
    return untouched(rows, 64, dtype=F32)


def _counts() -> Tensor:
    return untouched(NUM_COUNTS, dtype=I32)


def _group(model: Model, rows: int) -> Launch:
    return group_rows(
        untouched(rows, 64, dtype=I32),
        _groups(model, rows, 16),
        experts=model.experts,
        width=model.picks,
        row_tile=16,
        counts=_counts(),
        count=TOKENS,
        max_rows=rows,
    )


def _route(model: Model) -> Launch:
    op = route_op(model)
    bias = untouched(model.experts, dtype=F32) if op.bias else None
    return route(
        split_k(round_up(model.experts, 64), 2048, count=9, whole=False),
        untouched(2048, 64, dtype=I32),
        _shares(2048),
        op=op,
        bias=bias,
        factors=None,
        counts=_counts(),
        count=TOKENS,
        max_rows=2048,
    )


def route_op(model: Model) -> Route:
    """DeepSeek's chooses with a bias."""
    sigmoid = model.groups is not None or model.before_gate
    return Route(
        logits=Value("logits", Rows.TOKEN, model.experts, DType.F32),
        bias=Weight.stored("bias", (model.experts,), DType.F32) if model.groups else None,
        score="sigmoid" if sigmoid else "softmax",
        groups=model.groups,
        picks=Value("picks", Rows.TOKEN, model.picks, DType.I32),
        shares=Value("shares", Rows.TOKEN, model.picks, DType.F32),
    )
