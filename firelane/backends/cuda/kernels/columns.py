"""x turned round, [inputs, rows]: escapes meet single inputs of all rows, which lie apart in x (32 bytes are
read for each 2), and beside each other here."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.launch import Launch
from firelane.backends.cuda.matrices import Escapes
from firelane.backends.cuda.shapes import round_up

ROW_MULTIPLE = 256  # a tile of rows is read whole
TILE = 64


@triton.jit
def turn_kernel(
    x,
    columns,
    counts,
    k,
    x_stride,
    columns_stride,
    COUNT: tl.constexpr,
    TILE: tl.constexpr,
):
    """One tile of x; columns of rows that a step does not have are left as they are."""
    first = tl.program_id(0) * TILE
    count = tl.load(counts + COUNT) - first
    if count <= 0:
        return
    rows, inputs = tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (rows < count)[:, None] & (inputs < k)[None, :]
    x += first.to(tl.int64) * x_stride
    tile = tl.load(x + rows[:, None] * x_stride + inputs[None, :], mask=inside, other=0.0)
    places = columns + first + inputs.to(tl.int64)[:, None] * columns_stride + rows[None, :]
    tl.store(places, tl.trans(tile), mask=(inputs < k)[:, None])


def elements(k: int, max_rows: int) -> int:
    """Of a buffer for the columns of x [max_rows, k]."""
    return k * round_up(max_rows, ROW_MULTIPLE)


def turn(
    x: Tensor, columns: Tensor, *, k: int, counts: Tensor, count: int, max_rows: int
) -> tuple[Launch, Tensor]:
    """The launch that writes x [max_rows, >= k] into the buffer `columns`, of x's dtype with at least
    elements() of them; and where they then lie, [k, a multiple of ROW_MULTIPLE]. Rows from counts[count] on
    are 0 or garbage there."""
    stride = round_up(max_rows, ROW_MULTIPLE)
    assert k * stride < 1 << 31, "offsets of columns are 32-bit numbers"
    turned = columns.view(-1)[: k * stride].view(k, stride)
    launch = Launch(
        kernel=turn_kernel,
        grid=(-(-max_rows // TILE), -(-k // TILE)),
        arguments={
            "x": x,
            "columns": turned,
            "counts": counts,
            "k": k,
            "x_stride": x.stride(0),
            "columns_stride": stride,
            "COUNT": count,
            "TILE": TILE,
        },
    )
    return launch, turned


def are_worth(escapes: Escapes) -> bool:
    """Whether there is a list to walk: room for one entry is there without any."""
    return escapes.where.shape[0] > 1
