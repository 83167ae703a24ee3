# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)
"""Online softmax (Milakov & Gimelshein, 2018; Dao et al., "FlashAttention", 2022) over the paged cache, as
both attention paths do it.

The state of some rows of queries over some positions is (m, l, acc): m the largest score times
scale * log2(e), l the sum of the exponentials 2^(score - m), acc their products with V. Rows that saw nothing
have (-inf, 0, 0). The positions of a context are taken in tiles of TILE, in increasing order; a state grows
over a split, and the states of the splits are folded from the first on. A tile or a split of which a row
sees nothing leaves that row's state as it was, to the bit: so a row's result does not depend on the rows
beside it.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from firelane.backends.cuda.device.shapes import ATTENTION_SPLIT
from firelane.backends.cuda.kernels.activations import LOG2_E, TWICE_LOG2_E, tanh_of_exponent
from firelane.program.ops import Attention

SPLIT = tl.constexpr(ATTENTION_SPLIT)
_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def fresh(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The state of rows that saw nothing."""
    m = tl.full((ROWS,), float("-inf"), tl.float32)
    l = tl.zeros((ROWS,), tl.float32)  # noqa: E741
    return m, l, tl.zeros((ROWS, COLUMNS), tl.float32)


@triton.jit
def before_splits(sinks, head, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The state that the splits of rows are folded into: of their heads' sinks, if there are any, a score of
    each without a value. They enter here alone, not in a split's state. head: int32 [ROWS]."""
    m, l, acc = fresh(ROWS, COLUMNS)  # noqa: E741
    if sinks is not None:
        m = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        l += 1.0  # noqa: E741
    return m, l, acc


@triton.jit
def products(q, k, q_tail, k_tail, CAP_SLOPE: tl.constexpr):
    """Scores before they are scaled: [ROWS, TILE]. q: [ROWS, COLUMNS]; k: [TILE, COLUMNS]; the tails: what
    stands behind these columns, or None."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if q_tail is not None:
        behind = tl.dot(q_tail, tl.trans(k_tail), input_precision="ieee")
        # No plain sum: the compiler would chain the products, and give them different layouts.
        scores = tl.fma(behind, 1.0, scores)
    if CAP_SLOPE != 0.0:
        scores = tanh_of_exponent(scores * CAP_SLOPE)
    return scores


def score_arguments(op: Attention) -> dict[str, Any]:
    """scale: of what products() gives. With a cap, that is the tangent, of an argument of base 2."""
    slope = op.scale / op.softcap * TWICE_LOG2_E if op.softcap else 0.0
    return {"scale": (op.softcap or op.scale) * LOG2_E, "CAP_SLOPE": slope}


@triton.jit
def first_visible(position, SPAN: tl.constexpr):
    """Span.first: the first position that a token at `position` sees. SPAN: tables.span_code."""
    if SPAN > 0:
        first = tl.maximum(position - SPAN + 1, 0)
    elif SPAN < 0:
        first = position // -SPAN * -SPAN
    else:
        first = position * 0
    return first


@triton.jit
def hide(scores, first, position, lowest, highest, TILE: tl.constexpr, SPAN: tl.constexpr):
    """Scores of the tile from `first` on, -inf where a row does not see a position. position: of the rows,
    int32 [ROWS, 1] or [1, 1], from `lowest` to `highest`."""
    partly = first + TILE - 1 > lowest
    if SPAN != 0:
        partly = partly | (first < first_visible(highest, SPAN))
    if partly:
        at = first + tl.arange(0, TILE)[None, :]
        visible = at <= position
        if SPAN != 0:
            visible = visible & (at >= first_visible(position, SPAN))
        scores = tl.where(visible, scores, float("-inf"))
    return scores


@triton.jit
def add_tile(m, l, acc, scores, v, scale):  # noqa: E741
    """The state after one more tile. scores: [ROWS, TILE], of products() and hide(); v:
    [TILE, COLUMNS], zero where nothing was written; scale: scale * log2(e)."""
    new_m = tl.maximum(m, tl.max(scores, 1) * scale)
    base = tl.where(new_m == float("-inf"), 0.0, new_m)  # -inf - -inf is no number
    weights = tl.exp2(tl.fma(scores, scale, -base[:, None]))
    shrink = tl.exp2(m - base)
    new_l = l * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return new_m, new_l, acc


@triton.jit
def fold(total_m, total_l, total, m, l, acc):  # noqa: E741
    """The state of all splits so far, after one more split's."""
    new_m = tl.maximum(total_m, m)
    base = tl.where(new_m == float("-inf"), 0.0, new_m)
    kept, added = tl.exp2(total_m - base), tl.exp2(m - base)
    return new_m, total_l * kept + l * added, total * kept[:, None] + acc * added[:, None]


@triton.jit
def finish(total_l, total):
    """The attention of the state of all splits. A zero is a positive one, whatever was added to it."""
    return total / tl.where(total_l == 0.0, 1.0, total_l)[:, None] + 0.0


@triton.jit
def cache_rows(
    block_table,
    kv_head,
    first,
    end,
    TILE: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Offsets in the pages, in elements, of positions first .. first + TILE - 1: int64 [TILE].

    first: a multiple of TILE, so that a tile lies within one block if blocks are not smaller than it. Else a
    position from `end` on may have no block.
    """
    if BLOCK_SIZE // TILE * TILE == BLOCK_SIZE:
        block = tl.load(block_table + first // BLOCK_SIZE).to(tl.int64)
        rows = block * PAGE + (kv_head * BLOCK_SIZE + first % BLOCK_SIZE + tl.arange(0, TILE)) * HEAD_DIM
    else:
        position = first + tl.arange(0, TILE)
        blocks = tl.load(block_table + position // BLOCK_SIZE, mask=position < end, other=0).to(tl.int64)
        rows = blocks * PAGE + (kv_head * BLOCK_SIZE + position % BLOCK_SIZE) * HEAD_DIM
    return rows


@triton.jit
def load_tile(cache, rows, written, column, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """[TILE, COLUMNS] of keys or values; zero where nothing was written and beyond WIDTH. column:
    int32 [1, COLUMNS]."""
    mask = written[:, None]
    if WIDTH % COLUMNS != 0:
        mask = mask & (column < WIDTH)
    return tl.load(cache + rows[:, None] + column, mask=mask, other=0.0)
