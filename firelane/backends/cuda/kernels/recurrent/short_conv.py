"""ShortConv: every token by itself, from the tokens before it, or from the state where those are of an
earlier step."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.activations import activated
from firelane.backends.cuda.kernels.recurrent.state import (
    CHUNK_COLUMNS,
    CHUNKS,
    DRAFTED,
    FIRST_TOKEN,
    LENGTH,
    read_state,
    state_arguments,
    write_spare,
    write_state,
)
from firelane.backends.cuda.kernels.sums import columns_of
from firelane.backends.cuda.step.tables import TOKENS, StepTables
from firelane.program.ops import ShortConv


@triton.jit
def _row(
    x, x_stride, states, states_stride, about, number, channel, mask, WIDTH: tl.constexpr, KEPT: tl.constexpr
):
    """The channels of token `number` of the chunk; of those before it, -1 being the last one, from the
    state."""
    first = tl.load(about + FIRST_TOKEN).to(tl.int64)
    here = tl.load(x + (first + number) * x_stride + channel, mask=mask & (number >= 0), other=0.0)
    places = (KEPT + number) * WIDTH + channel
    return here + read_state(states, states_stride, about, places, mask & (number < 0))


@triton.jit
def short_conv_kernel(  # limits: exempt (kernel: what it reads and writes)
    x,
    x_stride,
    weight,
    bias,
    states,
    states_stride,
    counts,
    chunks,
    token_chunk,
    out,
    out_stride,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a token and BLOCK channels. Sums from the oldest tap on."""
    row = tl.program_id(0)
    if row >= tl.load(counts + COUNT):
        return
    about = chunks + tl.load(token_chunk + row) * CHUNK_COLUMNS
    number = row - tl.load(about + FIRST_TOKEN)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < WIDTH
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        factor = tl.load(weight + tap * WIDTH + channel, mask=mask, other=0.0)
        seen = _row(
            x, x_stride, states, states_stride, about, number - (TAPS - 1) + tap, channel, mask,
            WIDTH, TAPS - 1,
        )  # fmt: skip
        total += factor * seen
    if bias is not None:
        total += tl.load(bias + channel, mask=mask, other=0.0)
    tl.store(out + row.to(tl.int64) * out_stride + channel, activated(total, ACT), mask=mask)


@triton.jit
def keep_tokens_kernel(  # limits: exempt (kernel: what it reads and writes)
    x,
    x_stride,
    states,
    states_stride,
    counts,
    chunks,
    WIDTH: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a chunk and BLOCK channels: the last KEPT tokens become the spare state, those before the
    draft the live one. From the oldest on, as a place of the state is read for one before it is written."""
    chunk = tl.program_id(0)
    if chunk >= tl.load(counts + CHUNKS):
        return
    about = chunks + chunk * CHUNK_COLUMNS
    length, drafted = tl.load(about + LENGTH), tl.load(about + DRAFTED)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < WIDTH
    for kept in tl.static_range(KEPT):
        place, last = kept * WIDTH + channel, length - KEPT + kept
        seen = _row(x, x_stride, states, states_stride, about, last - drafted, channel, mask, WIDTH, KEPT)
        if drafted > 0:
            end = _row(x, x_stride, states, states_stride, about, last, channel, mask, WIDTH, KEPT)
            write_spare(states, states_stride, about, place, end, mask)
        write_state(states, states_stride, about, place, seen, mask)


def short_conv(
    x: Tensor,
    out: Tensor,
    *,
    op: ShortConv,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    tables: StepTables,
    max_tokens: int,
    max_chunks: int,
) -> list[Launch]:
    """x, out: float32 [rows, stride]; weight: float32 [taps * width]; states: float32 [num_states, numbers of
    the layer]. The state is written when all tokens have read it."""
    width = op.out.width
    block = columns_of(width)
    blocks = -(-width // block)
    common: dict[str, Any] = {
        **state_arguments(states, tables),
        "x": x,
        "x_stride": x.stride(0),
        "WIDTH": width,
        "BLOCK": block,
    }
    convolved = Launch(
        kernel=short_conv_kernel,
        grid=(max_tokens, blocks),
        arguments={
            **common,
            "weight": weight,
            "bias": bias,
            "token_chunk": tables.token_chunk,
            "out": out,
            "out_stride": out.stride(0),
            "COUNT": TOKENS,
            "TAPS": op.taps,
            "ACT": op.act,
        },
    )
    kept = Launch(
        kernel=keep_tokens_kernel, grid=(max_chunks, blocks), arguments={**common, "KEPT": op.taps - 1}
    )
    return [convolved, kept]
