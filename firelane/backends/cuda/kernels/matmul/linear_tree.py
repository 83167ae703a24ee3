"""Segments of a product, added as a binary tree while they are summed one after the other."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.kernels.matmul.products import again, finished, halves


@triton.jit
def add_to_tree(  # limits: exempt (kernel: a tile of the output, and what it is made of)
    out,
    levels,
    total,
    segment,
    feature,
    count,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    SLICES: tl.constexpr,
    SEGMENTS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Add `total`, the sum of a segment, to all that wait for it. A sum that waits for its neighbour lies in
    `levels`, one plane for each height of a subtree; the last one becomes out = (it + bias) * scale +
    residual. SLICES: as of add_to_tile()."""
    features = feature + tl.arange(0, FEATURES)
    tl.debug_barrier()
    if SLICES == 1:
        _add_rows(out, levels, total, segment, features, count, 0, ROW_TILE, SEGMENTS, LEVELS)
    else:
        quarter: tl.constexpr = ROW_TILE // 4
        lower, upper = halves(total, FEATURES, ROW_TILE)
        first, second = halves(lower, FEATURES, ROW_TILE // 2)
        third, fourth = halves(upper, FEATURES, ROW_TILE // 2)
        _add_rows(out, levels, first, segment, features, count, 0 * quarter, quarter, SEGMENTS, LEVELS)
        _add_rows(out, levels, second, segment, features, count, 1 * quarter, quarter, SEGMENTS, LEVELS)
        _add_rows(out, levels, third, segment, features, count, 2 * quarter, quarter, SEGMENTS, LEVELS)
        _add_rows(out, levels, fourth, segment, features, count, 3 * quarter, quarter, SEGMENTS, LEVELS)


@triton.jit
def _add_rows(
    out,
    levels,
    total,
    segment,
    features,
    count,
    first,
    WIDTH: tl.constexpr,
    SEGMENTS: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """add_to_tree() of rows first .. first + WIDTH of the tile."""
    tokens = again(first) + tl.arange(0, WIDTH)
    mask = (features < out.features)[:, None] & (tokens < count)[None, :]
    waiting = levels.data + tokens[None, :] * levels.row_stride + features[:, None]
    height = 0
    for level in tl.static_range(LEVELS):
        ends = (segment + 1) % (2 << level) == 0
        earlier = tl.load(waiting + level * levels.stride, mask=mask & ends, other=0.0)
        total = tl.where(ends, earlier + total, total)
        height = tl.where(ends, level + 1, height)
    is_last = segment == SEGMENTS - 1
    tl.store(waiting + height.to(tl.int64) * levels.stride, total, mask=mask & (not is_last))
    if is_last:
        total = finished(out, total, features, tokens, mask)
        tl.store(out.data + tokens[None, :] * out.stride + features[:, None], total, mask=mask)
