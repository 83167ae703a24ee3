"""Recipes against plain NumPy: views, orders, takes, cuts and stacks."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from firelane.errors import UnsupportedModelError
from firelane.program.recipes import Code, Padding, Piece, WeightLayout
from firelane.program.reference import materialise
from firelane.program.values import DType, Weight

HEADS, D, K, E, N = 3, 8, 5, 4, 6


def numbers(*shape: int, start: int = 0) -> NDArray[np.float32]:
    """All different, exact in float32."""
    return np.arange(start, start + prod(shape), dtype=np.float32).reshape(shape)


def weight(shape: tuple[int, ...], *pieces: Piece, **fields: Any) -> Weight:
    return Weight(name="w", shape=shape, dtype=DType.F32, pieces=pieces, **fields)


def made(w: Weight, tensors: dict[str, NDArray[np.float32]] | None = None) -> NDArray[np.float32]:
    """From the tensors named, or of numbers(), each in the shape that its piece says."""
    shapes = {piece.tensor: piece.shape for piece in w.pieces}
    return materialise(w, lambda name: (tensors or {}).get(name, numbers(*shapes[name])))


def test_stacked() -> None:
    w = weight((5, K), Piece(tensor="a", shape=(2, K)), Piece(tensor="b", shape=(3, K)))
    np.testing.assert_array_equal(made(w), np.concatenate([numbers(2, K), numbers(3, K)]))
    assert w.tensors == ("a", "b")


def test_padded_rows_and_columns() -> None:
    """Zeros behind each three numbers; cut anywhere."""
    rows = Piece(tensor="t", shape=(6, K), padding=Padding(own=3, room=5))
    want = np.zeros((10, K), np.float32)
    want[[0, 1, 2, 5, 6, 7]] = numbers(6, K)
    np.testing.assert_array_equal(made(weight((10, K), rows)), want)
    columns = Piece(tensor="t", shape=(K, 6), padding=Padding(own=3, room=5, of_columns=True))
    np.testing.assert_array_equal(made(weight((K, 10), columns))[:, [0, 1, 2, 5, 6, 7]], numbers(K, 6))
    assert not made(weight((K, 10), columns))[:, [3, 4, 8, 9]].any()
    vector = Piece(tensor="v", shape=(6,), padding=Padding(own=3, room=5), plus=1.0)
    np.testing.assert_array_equal(made(weight((10,), vector)), [1, 2, 3, 0, 0, 4, 5, 6, 0, 0])
    np.testing.assert_array_equal(made(weight((10, K), rows).cut(rows=[range(4, 9)])), want[4:9])


def test_transposed() -> None:
    w = weight((N, K), Piece(tensor="t", shape=(K, N), order=(1, 0)))
    np.testing.assert_array_equal(made(w), numbers(K, N).T)


def test_pairs_of_a_rotation_to_halves() -> None:
    """Row 2i of each head to i, row 2i + 1 to d / 2 + i; the vector that norms a head goes along."""
    pairs = Piece(tensor="q", shape=(HEADS * D, K), view=(HEADS, D // 2, 2, K), order=(0, 2, 1, 3))
    found = made(weight((HEADS * D, K), pairs)).reshape(HEADS, D, K)
    stored = numbers(HEADS, D, K)
    np.testing.assert_array_equal(found[:, : D // 2], stored[:, 0::2])
    np.testing.assert_array_equal(found[:, D // 2 :], stored[:, 1::2])
    norm = made(weight((D,), Piece(tensor="n", shape=(D,), view=(D // 2, 2), order=(1, 0))))
    np.testing.assert_array_equal(norm, [0, 2, 4, 6, 1, 3, 5, 7])


def test_alternating_gate_and_up() -> None:
    halves = [
        Piece(tensor="t", shape=(2 * N, K), view=(N, 2, K), take=(None, range(i, i + 1))) for i in (0, 1)
    ]
    found = made(weight((2 * N, K), *halves, layout=WeightLayout.GATED))
    np.testing.assert_array_equal(found[:N], numbers(2 * N, K)[0::2])
    np.testing.assert_array_equal(found[N:], numbers(2 * N, K)[1::2])


def test_experts_in_one_transposed_tensor() -> None:
    w = weight((E, N, K), Piece(tensor="t", shape=(E, K, N), order=(0, 2, 1)), layout=WeightLayout.EXPERTS)
    np.testing.assert_array_equal(made(w), numbers(E, K, N).transpose(0, 2, 1))


def test_experts_alternating_and_transposed() -> None:
    piece = Piece(tensor="t", shape=(E, K, 2 * N), view=(E, K, N, 2), order=(0, 3, 2, 1))
    found = made(weight((E, 2 * N, K), piece, layout=WeightLayout.GATED_EXPERTS))
    np.testing.assert_array_equal(found[2, 1], numbers(E, K, 2 * N)[2, :, 2])
    np.testing.assert_array_equal(found[2, N + 1], numbers(E, K, 2 * N)[2, :, 3])


def test_a_slice_of_each_head_transposed() -> None:
    """The keys' part of a projection back from a latent, as a matrix [latent, width] for each head."""
    piece = Piece(
        tensor="kv_b", shape=(HEADS * D, K), view=(HEADS, D, K), order=(0, 2, 1), take=(None, None, range(3))
    )
    found = made(weight((HEADS, K, 3), piece, layout=WeightLayout.EXPERTS))
    np.testing.assert_array_equal(found, numbers(HEADS, D, K)[:, :3].transpose(0, 2, 1))


def test_plus_is_added_in_float32() -> None:
    stored = np.array([0.1, -0.3, 2.0**-30], np.float32)
    found = made(weight((3,), Piece(tensor="n", shape=(3,), plus=1.0)), {"n": stored})
    np.testing.assert_array_equal(found, np.float32(1) + stored)


def test_bits_of_bf16_are_widened() -> None:
    w = Weight.stored("w", (3,), DType.F32)
    assert materialise(w, lambda _: np.array([0x3F80, 0xC000, 0], np.uint16)).tolist() == [1, -2, 0]


@st.composite
def pieces(draw: st.DrawFn, columns: int | None = None) -> Piece:
    """Any rearrangement of a small tensor, cut or not; with so many columns, if that is said."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    order = tuple(draw(st.permutations(range(len(sizes)))))
    if columns is not None:
        sizes[order[-1]] = columns
    take: list[range | None] = []
    for axis in order if columns is None else order[:-1]:
        first = draw(st.integers(0, sizes[axis] - 1))
        some = range(first, draw(st.integers(first + 1, sizes[axis])), draw(st.integers(1, 2)))
        take.append(draw(st.sampled_from([None, some])))
    split = draw(st.integers(1, len(sizes) - 1))
    shape = (prod(sizes[:split]), prod(sizes[split:]))
    piece = Piece(tensor="t", shape=shape, view=tuple(sizes), order=order, take=tuple(take))
    if draw(st.booleans()):
        first = draw(st.integers(0, piece.height - 1))
        piece = replace(piece, rows=range(first, draw(st.integers(first + 1, piece.height))))
    return piece


@settings(deadline=None)
@given(piece=pieces())
def test_offsets_say_where_the_rows_lie(piece: Piece) -> None:
    """Numbers are their own places: what materialise() finds is what offsets() says."""
    found = made(weight((piece.height, piece.width), piece))
    at = piece.offsets(0, piece.height)[:, None] + np.arange(piece.width) * piece.grid.column_stride
    np.testing.assert_array_equal(found, at)
    np.testing.assert_array_equal(piece.offsets(1, piece.height), piece.offsets(0, piece.height)[1:])


@st.composite
def weights(draw: st.DrawFn) -> Weight:
    """Plain, gated and by expert, of several pieces that end anywhere."""
    k = draw(st.integers(1, 4))
    parts = [
        replace(p, tensor=f"t{i}") for i, p in enumerate(draw(st.lists(pieces(k), min_size=1, max_size=4)))
    ]
    height = sum(p.height for p in parts)
    layouts = [(WeightLayout.PLAIN, (height, k)), (WeightLayout.EXPERTS, (height, 1, k))]
    if height % 2 == 0:
        layouts += [(WeightLayout.GATED, (height, k)), (WeightLayout.GATED_EXPERTS, (height // 2, 2, k))]
        layouts += [(WeightLayout.EXPERTS, (2, height // 2, k))]
    if height % 4 == 0:
        layouts += [(WeightLayout.GATED_EXPERTS, (2, height // 2, k))]
    layout, shape = draw(st.sampled_from(layouts))
    return weight(shape, *parts, layout=layout)


def some_range(draw: st.DrawFn, size: int) -> range:
    first = draw(st.integers(0, size - 1))
    return range(first, draw(st.integers(first + 1, size)))


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_a_cut_is_a_slice(data: st.DataObject) -> None:
    w = data.draw(weights())
    halves = 2 if w.layout.is_gated else 1
    rows = [some_range(data.draw, w.rows // halves) for _ in range(data.draw(st.integers(0, 2)))]
    columns = data.draw(st.none()) if data.draw(st.booleans()) else some_range(data.draw, w.k)
    experts = some_range(data.draw, w.matrices) if w.layout.by_expert else None
    found = w.cut(rows=rows, columns=columns, experts=experts)
    whole = made(w).reshape(w.matrices, halves, w.rows // halves, w.k)
    if experts is not None:
        whole = whole[experts.start : experts.stop]
    if rows:
        whole = np.concatenate([whole[:, :, r.start : r.stop] for r in rows], axis=2)
    if columns is not None:
        whole = whole[..., columns.start : columns.stop]
    tensors = {p.tensor: numbers(*p.shape) for p in w.pieces}
    np.testing.assert_array_equal(made(found, tensors), whole.reshape(found.shape))


@settings(deadline=None)
@given(data=st.data())
def test_cuts_of_cuts(data: st.DataObject) -> None:
    w = data.draw(weights())
    outer = some_range(data.draw, w.k)
    inner = some_range(data.draw, len(outer))
    twice = w.cut(columns=outer).cut(columns=inner)
    assert twice == w.cut(columns=range(outer.start + inner.start, outer.start + inner.stop))


def test_a_cut_vector() -> None:
    w = weight((10,), Piece(tensor="a", shape=(4,)), Piece(tensor="b", shape=(6,)))
    assert made(w.cut(rows=(range(2, 6),))).tolist() == [2, 3, 0, 1]


def test_a_cut_needs_no_more_pieces_than_it_has() -> None:
    """Neighbours are one read; a whole weight cut along its inputs is cut once a tensor."""
    one = weight((E, N, K), Piece(tensor="t", shape=(E, N, K)), layout=WeightLayout.EXPERTS)
    assert len(one.cut(columns=range(2)).pieces) == 1
    assert len(one.cut(rows=(range(1, 3),)).pieces) == E


@settings(deadline=None)
@given(data=st.data())
def test_spans_are_the_rows_asked_for(data: st.DataObject) -> None:
    w = data.draw(weights())
    asked = some_range(data.draw, w.height)
    spans = list(w.spans(asked.start, asked.stop))
    assert sum(len(rows) for _, rows in spans) == len(asked)
    places = [(p.tensor, at) for p in w.pieces for at in range(p.height)]
    assert [(p.tensor, at) for p, rows in spans for at in rows] == places[asked.start : asked.stop]


@pytest.mark.parametrize(
    ("shape", "piece", "layout"),
    [
        ((4, K), Piece(tensor="t", shape=(3, K)), WeightLayout.PLAIN),
        ((3, 4), Piece(tensor="t", shape=(3, K)), WeightLayout.PLAIN),
        ((15,), Piece(tensor="t", shape=(3, K)), WeightLayout.PLAIN),
        ((3, K), Piece(tensor="t", shape=(3, K)), WeightLayout.GATED),
        ((3, K), Piece(tensor="t", shape=(3, K)), WeightLayout.EXPERTS),
        ((3, 1, K), Piece(tensor="t", shape=(3, K)), WeightLayout.PLAIN),
    ],
    ids=str,
)
def test_a_recipe_that_does_not_fit(shape: tuple[int, ...], piece: Piece, layout: WeightLayout) -> None:
    with pytest.raises(AssertionError, match="w: "):
        weight(shape, piece, layout=layout)


@pytest.mark.parametrize(
    "fields",
    [{"view": (4, 4)}, {"order": (0, 0)}, {"order": (0,)}, {"take": (None, None, None)}],
    ids=str,
)
def test_a_piece_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="t: "):
        Piece(tensor="t", shape=(3, 5), **fields)


def test_plus_is_for_vectors_in_float32() -> None:
    with pytest.raises(AssertionError, match="plus"):
        Weight(name="w", shape=(3,), dtype=DType.BF16, pieces=(Piece(tensor="t", shape=(3,), plus=1.0),))


def test_a_code_is_refused() -> None:
    code = Code(kind="int4", group=32, scale="bf16")
    with pytest.raises(UnsupportedModelError, match="w: weights stored as int4"):
        replace(Weight.stored("w", (4, 32), DType.BF16), code=code)


def test_weights_of_one_name_have_one_hash() -> None:
    w = Weight.stored("w", (4, 32), DType.BF16)
    other = replace(w, pieces=(replace(w.pieces[0], tensor="other"),))
    assert hash(w) == hash(other)
    assert w != other
