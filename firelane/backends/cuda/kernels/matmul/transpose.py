"""x transposed, [inputs, rows]: escapes meet single inputs of all rows, which lie apart in x (32 bytes are
read for each 2), and beside each other here."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.shapes import round_up
from firelane.backends.cuda.weights.matrices import Escapes

ROW_MULTIPLE = 256  # a tile of rows is read whole
TILE = 64


@triton.jit
def transpose_kernel(
    x,
    x_t,
    counts,
    k,
    x_stride,
    x_t_stride,
    COUNT: tl.constexpr,
    TILE: tl.constexpr,
):
    """One tile of x; x_t of rows that a step does not have are left as they are."""
    first = tl.program_id(0) * TILE
    count = tl.load(counts + COUNT) - first
    if count <= 0:
        return
    rows, inputs = tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (rows < count)[:, None] & (inputs < k)[None, :]
    x += first.to(tl.int64) * x_stride
    tile = tl.load(x + rows[:, None] * x_stride + inputs[None, :], mask=inside, other=0.0)
    places = x_t + first + inputs.to(tl.int64)[:, None] * x_t_stride + rows[None, :]
    tl.store(places, tl.trans(tile), mask=(inputs < k)[:, None])


def elements(k: int, max_rows: int) -> int:
    """Elements of a buffer for the x_t of x [max_rows, k]."""
    return k * round_up(max_rows, ROW_MULTIPLE)


def transpose(
    x: Tensor, x_t: Tensor, *, k: int, counts: Tensor, count: int, max_rows: int
) -> tuple[Launch, Tensor]:
    """The launch that writes x [max_rows, >= k] into the buffer `x_t`, of x's dtype with at least
    elements() of them; and where they then lie, [k, a multiple of ROW_MULTIPLE]. Rows from counts[count] on
    are 0 or garbage there."""
    stride = round_up(max_rows, ROW_MULTIPLE)
    assert k * stride < 1 << 31, "offsets of x_t are 32-bit numbers"
    transposed = x_t.view(-1)[: k * stride].view(k, stride)
    launch = Launch(
        kernel=transpose_kernel,
        grid=(-(-max_rows // TILE), -(-k // TILE)),
        arguments={
            "x": x,
            "x_t": transposed,
            "counts": counts,
            "k": k,
            "x_stride": x.stride(0),
            "x_t_stride": stride,
            "COUNT": count,
            "TILE": TILE,
        },
    )
    return launch, transposed


def are_worth(escapes: Escapes) -> bool:
    """Whether there is a list to walk: room for one entry is there without any."""
    return escapes.where.shape[0] > 1
