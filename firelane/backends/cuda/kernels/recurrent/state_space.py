"""StateSpace: token after token, with some columns of a head's state in registers, as DeltaRule has them
(delta_rule.py)."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.activations import softplus
from firelane.backends.cuda.kernels.recurrent.state import (
    CHUNK_COLUMNS,
    CHUNKS,
    COLUMNS,
    DRAFTED,
    FIRST_TOKEN,
    IN_FLIGHT,
    LENGTH,
    read_state,
    state_arguments,
    write_spare,
    write_state,
)
from firelane.backends.cuda.kernels.sums import power_of_two
from firelane.backends.cuda.step.tables import StepTables
from firelane.program.ops import StateSpace

_LARGEST = float(np.finfo(np.float32).max)


@triton.jit
def _walked(  # limits: exempt (kernel: what it reads and writes)
    state,
    first,
    count,
    xs,
    bs,
    cs,
    xbc_stride,
    dt,
    dt_stride,
    speed,
    shift,
    through,
    out,
    out_stride,
    is_row,
    is_column,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
):
    """The state after `count` tokens, whose rows from `first` on are written to `out`. All pointers are at
    the program's own columns."""
    for number in tl.range(0, count, num_stages=IN_FLIGHT):
        token = first + number
        x = tl.load(xs + token * xbc_stride, mask=is_column, other=0.0)
        b = tl.load(bs + token * xbc_stride, mask=is_row, other=0.0)
        c = tl.load(cs + token * xbc_stride, mask=is_row, other=0.0)
        step = softplus(tl.load(dt + token * dt_stride) + shift)
        step = tl.minimum(tl.maximum(step, LEAST), MOST)
        state = state * tl.exp(-speed * step) + b[:, None] * (step * x)[None, :]
        found = tl.sum(state * c[:, None], axis=0) + through * x
        tl.store(out + token * out_stride, found, mask=is_column)
    return state


@triton.jit
def state_space_kernel(  # limits: exempt (kernel: what it reads and writes)
    xbc,
    xbc_stride,
    dt,
    dt_stride,
    a_log,
    dt_bias,
    skip,
    states,
    states_stride,
    counts,
    chunks,
    out,
    out_stride,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    STATE_DIM: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program a chunk, a head and COLUMNS columns of its state."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    if chunk >= tl.load(counts + CHUNKS):
        return
    about = chunks + chunk * CHUNK_COLUMNS
    first, drafted = tl.load(about + FIRST_TOKEN).to(tl.int64), tl.load(about + DRAFTED)
    known = tl.load(about + LENGTH) - drafted
    row = tl.arange(0, ROWS)
    is_row = row < STATE_DIM
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < HEAD_DIM
    places = (head * STATE_DIM + row[:, None]) * HEAD_DIM + column[None, :]
    mask = is_row[:, None] & is_column[None, :]
    state = read_state(states, states_stride, about, places, mask)
    speed = tl.exp(tl.load(a_log + head))
    shift, through = tl.load(dt_bias + head), tl.load(skip + head)
    xs = xbc + head * HEAD_DIM + column
    bs = xbc + HEADS * HEAD_DIM + head // (HEADS // GROUPS) * STATE_DIM + row
    cs = bs + GROUPS * STATE_DIM
    dt += head
    out += head * HEAD_DIM + column
    state = _walked(
        state, first, known, xs, bs, cs, xbc_stride, dt, dt_stride, speed, shift, through, out,
        out_stride, is_row, is_column, LEAST, MOST,
    )  # fmt: skip
    write_state(states, states_stride, about, places, state, mask)
    if drafted > 0:
        state = _walked(
            state, first + known, drafted, xs, bs, cs, xbc_stride, dt, dt_stride, speed, shift, through, out,
            out_stride, is_row, is_column, LEAST, MOST,
        )  # fmt: skip
        write_spare(states, states_stride, about, places, state, mask)


def state_space(
    xbc: Tensor,
    dt: Tensor,
    out: Tensor,
    *,
    op: StateSpace,
    a_log: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    states: Tensor,
    tables: StepTables,
    max_chunks: int,
) -> Launch:  # limits: exempt (kernel: as the op)
    """xbc, dt, out: float32 [rows, stride]; states: float32 [num_states, numbers of the layer]."""
    s, (least, most) = op.shape, op.limits
    return Launch(
        kernel=state_space_kernel,
        grid=(max_chunks, s.heads, -(-s.head_dim // COLUMNS)),
        arguments={
            **state_arguments(states, tables),
            "xbc": xbc,
            "xbc_stride": xbc.stride(0),
            "dt": dt[:, op.column :],
            "dt_stride": dt.stride(0),
            "a_log": a_log,
            "dt_bias": dt_bias,
            "skip": skip,
            "out": out,
            "out_stride": out.stride(0),
            "HEADS": s.heads,
            "GROUPS": s.groups,
            "HEAD_DIM": s.head_dim,
            "STATE_DIM": s.state_dim,
            "LEAST": least,
            "MOST": min(most, _LARGEST),
            "ROWS": power_of_two(s.state_dim),
            "COLUMNS": COLUMNS,
        },
        warps=1,
    )
