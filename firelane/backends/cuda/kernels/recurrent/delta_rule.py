"""DeltaRule: token after token, with some columns of a head's state in registers.

Columns of a state do not meet, so each program has some of them; and a token's result depends on the state
before it and on the token alone, however a prompt is cut.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

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
from firelane.program.ops import DeltaRule
from firelane.program.ops.recurrent.delta_rule import L2_EPS

_L2_EPS = tl.constexpr(float(L2_EPS))


@triton.jit
def _unit(x):
    """A vector of length one."""
    return x * tl.rsqrt(tl.sum(x * x, axis=0) + _L2_EPS)


@triton.jit
def _log_decay(raw, speed, FLOOR: tl.constexpr):
    """g of the op. speed: exp(a_log). FLOOR 0: none."""
    return -speed * softplus(raw) if FLOOR == 0.0 else FLOOR / (1.0 + tl.exp(-speed * raw))


@triton.jit
def _walked(  # limits: exempt (kernel: what it reads and writes)
    state,
    first,
    count,
    queries,
    keys,
    values,
    qkv_stride,
    decay,
    decay_stride,
    beta,
    beta_stride,
    speed,
    shift,
    out,
    out_stride,
    is_key,
    is_column,
    KEY_DIM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    FLOOR: tl.constexpr,
):
    """The state after `count` tokens, whose rows from `first` on are written to `out`. All pointers are at
    the program's own columns."""
    for number in tl.range(0, count, num_stages=IN_FLIGHT):
        row = first + number
        q = tl.load(queries + row * qkv_stride, mask=is_key, other=0.0)
        k = tl.load(keys + row * qkv_stride, mask=is_key, other=0.0)
        v = tl.load(values + row * qkv_stride, mask=is_column, other=0.0)
        share = 1.0 / (1.0 + tl.exp(-tl.load(beta + row * beta_stride)))
        if BY_CHANNEL:
            raw = tl.load(decay + row * decay_stride, mask=is_key, other=0.0)
            state *= tl.exp(_log_decay(raw + shift, speed, FLOOR))[:, None]
        else:
            state *= tl.exp(_log_decay(tl.load(decay + row * decay_stride) + shift, speed, FLOOR))
        q, k = _unit(q) * (KEY_DIM**-0.5), _unit(k)
        change = share * (v - tl.sum(state * k[:, None], axis=0))
        state += k[:, None] * change[None, :]
        tl.store(out + row * out_stride, tl.sum(state * q[:, None], axis=0), mask=is_column)
    return state


@triton.jit
def delta_rule_kernel(  # limits: exempt (kernel: what it reads and writes)
    qkv,
    qkv_stride,
    decay,
    decay_stride,
    beta,
    beta_stride,
    a_log,
    dt_bias,
    states,
    states_stride,
    counts,
    chunks,
    out,
    out_stride,
    KEY_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    FLOOR: tl.constexpr,
    KEYS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program a chunk, a head and COLUMNS columns of its values."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    if chunk >= tl.load(counts + CHUNKS):
        return
    about = chunks + chunk * CHUNK_COLUMNS
    first, drafted = tl.load(about + FIRST_TOKEN).to(tl.int64), tl.load(about + DRAFTED)
    known = tl.load(about + LENGTH) - drafted
    key = tl.arange(0, KEYS)
    is_key = key < KEY_DIM
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < VALUE_DIM
    places = (head * KEY_DIM + key[:, None]) * VALUE_DIM + column[None, :]
    mask = is_key[:, None] & is_column[None, :]
    state = read_state(states, states_stride, about, places, mask)
    speed = tl.exp(tl.load(a_log + head))
    if BY_CHANNEL:
        shift = tl.load(dt_bias + head * KEY_DIM + key, mask=is_key, other=0.0)
        decay += head * KEY_DIM + key
    else:
        shift = tl.load(dt_bias + head)
        decay += head
    queries = qkv + head // GROUP * KEY_DIM + key
    keys = queries + KEY_HEADS * KEY_DIM
    values = qkv + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + column
    beta += head
    out += head * VALUE_DIM + column
    state = _walked(
        state, first, known, queries, keys, values, qkv_stride, decay, decay_stride, beta,
        beta_stride, speed, shift, out, out_stride, is_key, is_column, KEY_DIM, BY_CHANNEL, FLOOR,
    )  # fmt: skip
    write_state(states, states_stride, about, places, state, mask)
    if drafted > 0:
        state = _walked(
            state, first + known, drafted, queries, keys, values, qkv_stride, decay, decay_stride, beta,
            beta_stride, speed, shift, out, out_stride, is_key, is_column, KEY_DIM, BY_CHANNEL, FLOOR,
        )  # fmt: skip
        write_spare(states, states_stride, about, places, state, mask)


def delta_rule(
    qkv: Tensor,
    decay: Tensor,
    beta: Tensor,
    out: Tensor,
    *,
    op: DeltaRule,
    a_log: Tensor,
    dt_bias: Tensor,
    states: Tensor,
    tables: StepTables,
    max_chunks: int,
) -> Launch:  # limits: exempt (kernel: as the op)
    """qkv, decay, beta, out: float32 [rows, stride]; states: float32 [num_states, numbers of the layer]."""
    s = op.shape
    return Launch(
        kernel=delta_rule_kernel,
        grid=(max_chunks, s.heads, -(-s.value_dim // COLUMNS)),
        arguments={
            **state_arguments(states, tables),
            "qkv": qkv,
            "qkv_stride": qkv.stride(0),
            "decay": decay[:, op.columns[0] :],
            "decay_stride": decay.stride(0),
            "beta": beta[:, op.columns[1] :],
            "beta_stride": beta.stride(0),
            "a_log": a_log,
            "dt_bias": dt_bias,
            "out": out,
            "out_stride": out.stride(0),
            "KEY_HEADS": s.key_heads,
            "GROUP": s.group,
            "KEY_DIM": s.key_dim,
            "VALUE_DIM": s.value_dim,
            "BY_CHANNEL": s.by_channel,
            "FLOOR": op.floor or 0.0,
            "KEYS": power_of_two(s.key_dim),
            "COLUMNS": COLUMNS,
        },
        warps=1,
    )
