"""Attention over the paged cache, decoded and in tiles, against its NumPy reference."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from attention_harness import PADDING, Piece, Scene, decoded

from firelane.contract import CAUSAL, Chunk, Span, Window
from firelane.program.ops import HeadShape
from firelane.program.values import DType

BOUNDS = {DType.F32: 2e-5, DType.BF16: 2.0**-7}  # see tests/backends/test_cpu_ops.py
CONTEXTS = (1, 63, 64, 65, 256, 257, 600)
SPANS = pytest.mark.parametrize("span", [CAUSAL, Window(20), Window(300), Chunk(96), Chunk(256)], ids=str)
BOTH = pytest.mark.parametrize("dtype", [DType.BF16, DType.F32], ids=["bf16", "f32"])


def heads(group: int = 4, head_dim: int = 16, kv_heads: int = 1) -> HeadShape:
    return HeadShape(heads=group * kv_heads, kv_heads=kv_heads, head_dim=head_dim)


def check(scene: Scene, pieces: list[Piece], **options: int) -> None:
    mine, expected = scene.attend(pieces, **options), scene.expected(pieces)
    assert np.isfinite(mine).all()
    error = np.abs(mine - expected).max() / np.abs(expected).max()
    assert error <= BOUNDS[scene.dtype], f"error {error:.2e}"


@BOTH
@SPANS
def test_decode_at_every_context(dtype: DType, span: Span) -> None:
    scene = Scene(shape=heads(kv_heads=2), dtype=dtype, span=span, slots=len(CONTEXTS), block_size=16)
    check(scene, [decoded(slot, context - 1) for slot, context in enumerate(CONTEXTS)])


@BOTH
@SPANS
def test_prompts_in_pieces(dtype: DType, span: Span) -> None:
    scene = Scene(shape=heads(kv_heads=2), dtype=dtype, span=span, slots=3, block_size=16)
    check(scene, [Piece(0, 0, 65), Piece(1, 250, 40), Piece(2, 599, 1)])


LATENTS = {
    "rank 32": HeadShape(heads=5, kv_heads=1, head_dim=48, value_dim=32, shared=True),
    "odd": HeadShape(heads=3, kv_heads=1, head_dim=30, value_dim=24, shared=True),
    "in parts of a group": HeadShape(heads=70, kv_heads=1, head_dim=48, value_dim=32, shared=True),
    "in slices": HeadShape(heads=2, kv_heads=1, head_dim=336, value_dim=320, shared=True),
}


@pytest.mark.parametrize("shape", LATENTS.values(), ids=LATENTS)
def test_values_that_are_a_part_of_their_keys(shape: HeadShape) -> None:
    """Decoded, and in tiles; the same bits in both."""
    scene = Scene(shape=shape, slots=2, max_len=300)
    check(scene, [decoded(0, 290), Piece(1, 254, 4), decoded(0, 5)])
    whole = scene.attend([Piece(1, 254, 4)])
    alone = np.concatenate([scene.attend([decoded(1, position)]) for position in range(254, 258)])
    np.testing.assert_array_equal(whole, alone)


def test_latents_in_float32() -> None:
    """Latents in float32 are attended to by more heads than a program has rows."""
    scene = Scene(
        shape=replace(LATENTS["rank 32"], heads=37), dtype=DType.F32, max_len=300, has_sinks=True, softcap=2.5
    )
    check(scene, [decoded(0, 290), Piece(0, 254, 4)])


NARROW = {
    "a third less": HeadShape(heads=6, kv_heads=2, head_dim=48, value_dim=32),
    "odd": HeadShape(heads=3, kv_heads=1, head_dim=30, value_dim=24),
}


@BOTH
@pytest.mark.parametrize("shape", NARROW.values(), ids=NARROW)
def test_values_that_are_narrower_than_keys(shape: HeadShape, dtype: DType) -> None:
    """Decoded, and in tiles, in blocks smaller than a tile and larger; the same bits in both."""
    for block_size in (16, 128):
        scene = Scene(shape=shape, dtype=dtype, slots=2, max_len=300, block_size=block_size)
        check(scene, [decoded(0, 290), Piece(1, 254, 4), decoded(0, 5)])
        whole = scene.attend([Piece(1, 254, 4)])
        alone = np.concatenate([scene.attend([decoded(1, position)]) for position in range(254, 258)])
        np.testing.assert_array_equal(whole, alone)


SCORES = pytest.mark.parametrize(
    "scores",
    [{"softcap": 1.5}, {"has_sinks": True}, {"softcap": 2.5, "has_sinks": True}],
    ids=["capped", "sinks", "both"],
)


@SCORES
@pytest.mark.parametrize("span", [CAUSAL, Window(20)], ids=str)
def test_caps_and_sinks(scores: dict[str, Any], span: Span) -> None:
    scene = Scene(shape=heads(3, kv_heads=2), dtype=DType.F32, span=span, slots=2, max_len=320, **scores)
    check(scene, [decoded(0, 0), decoded(0, 300), Piece(1, 240, 40)])


def test_sinks_far_above_or_below_the_scores() -> None:
    """They take all of the weight, or none, and may be none at all."""
    scene = Scene(shape=heads(4), dtype=DType.F32, max_len=280, has_sinks=True)
    scene.sinks[:] = [90, -90, -np.inf, 3]
    check(scene, [decoded(0, 270), Piece(0, 255, 3)])


@SCORES
def test_capped_scores_and_sinks_have_the_same_bits_in_every_step(scores: dict[str, Any]) -> None:
    """Sinks are counted once, however many splits a context has."""
    scene = Scene(shape=heads(3, 48), span=Window(400), block_size=32, **scores)
    whole = scene.attend([Piece(0, 510, 12)])[[0, 1, 2, 11]]
    alone = np.concatenate([scene.attend([decoded(0, position)]) for position in (510, 511, 512, 521)])
    np.testing.assert_array_equal(whole, alone)


@pytest.mark.parametrize(("group", "head_dim"), [(4, 16), (3, 256)])
def test_tiles_of_fewer_tokens_than_fill_one(group: int, head_dim: int) -> None:
    """A tile of fewer tokens gives the same bits. The tables have such tiles where layers differ in the size
    of a group."""
    shape = heads(group, head_dim)
    narrow, full = (Scene(shape=shape, max_len=60, tile_tokens=tokens) for tokens in (5, 0))
    pieces = [Piece(0, 20, 33)]
    np.testing.assert_array_equal(narrow.attend(pieces), full.attend(pieces))


@pytest.mark.parametrize("group", [1, 3, 4, 5, 7, 8])
def test_groups_of_any_size(group: int) -> None:
    scene = Scene(shape=heads(group, kv_heads=2), slots=2, max_len=150)
    check(scene, [decoded(0, 130), Piece(1, 0, 150)])


@BOTH
@pytest.mark.parametrize("head_dim", [16, 48, 64, 96, 128, 256])
def test_heads_of_any_width(head_dim: int, dtype: DType) -> None:
    scene = Scene(shape=heads(2, head_dim), dtype=dtype, slots=2, max_len=300)
    check(scene, [decoded(0, 299), Piece(1, 200, 80)])


@BOTH
def test_a_head_whose_values_are_computed_in_slices(dtype: DType) -> None:
    """With tiles of fewer positions; the same bits in both paths."""
    scene = Scene(shape=heads(2, 400), dtype=dtype, max_len=100, block_size=32, has_sinks=True)
    pieces = [Piece(0, 60, 20)]
    check(scene, pieces)
    np.testing.assert_array_equal(scene.attend([decoded(0, 79)])[0], scene.attend(pieces)[-1])


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("span", [CAUSAL, Window(300), Chunk(200)], ids=str)
def test_blocks_of_any_size(block_size: int, span: Span) -> None:
    scene = Scene(shape=heads(), slots=2, block_size=block_size, span=span)
    check(scene, [decoded(0, 517), Piece(1, 470, 48)])


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="four gigabytes to copy")
def test_a_cache_of_more_than_int32_counts() -> None:
    """Four gigabytes of address space, of which only the last blocks are memory."""
    scene = Scene(
        shape=heads(head_dim=32), slots=2, max_len=70, first_block=(1 << 31) // (64 * (2 * 32 + PADDING))
    )
    check(scene, [decoded(0, 69), Piece(1, 0, 20)])


def test_tokens_and_prompts_of_one_step() -> None:
    scene = Scene(shape=heads(3, kv_heads=2), slots=5, span=Window(300))
    pieces = [decoded(0, 300), Piece(1, 0, 50), decoded(2, 0), Piece(3, 400, 3), decoded(4, 599)]
    check(scene, pieces, spare=0)
    check(scene, pieces, spare=40)


@pytest.mark.parametrize("programs", [1, 3, 50])
def test_programs_share_the_kv_splits(programs: int) -> None:
    scene = Scene(shape=heads(), slots=3, programs=programs)
    check(scene, [decoded(slot, 300 + 140 * slot) for slot in range(3)])


def test_a_step_without_tokens() -> None:
    assert Scene(shape=heads()).attend([]).size == 0


@pytest.mark.parametrize(
    ("dtype", "span", "group"),
    [
        (DType.BF16, CAUSAL, 5),
        (DType.BF16, Window(100), 4),
        (DType.BF16, Chunk(300), 4),
        (DType.F32, Window(100), 5),
    ],
    ids=["bf16", "bf16-window", "bf16-chunk", "f32-window"],
)
def test_a_token_has_the_same_bits_in_every_step(dtype: DType, span: Span, group: int) -> None:
    """Decoded, alone or in company, or in a prompt's tile at any place."""
    scene = Scene(shape=heads(group, 48), dtype=dtype, span=span, slots=3, block_size=32)
    at = [290, 319, 320, 321, 511, 512, 530]
    whole = scene.attend([Piece(0, 290, 241)])[[position - 290 for position in at]]
    alone = np.concatenate([scene.attend([decoded(0, position)]) for position in at])
    np.testing.assert_array_equal(whole, alone)
    cut = [Piece(2, 0, 9), Piece(0, 290, 22), decoded(1, 5)]
    np.testing.assert_array_equal(scene.attend(cut)[9:31], scene.attend([Piece(0, 290, 22)]))
    company = [decoded(1, 411), decoded(0, 530), decoded(2, 599)]
    np.testing.assert_array_equal(scene.attend(company)[1], whole[-1])
    np.testing.assert_array_equal(scene.attend([Piece(0, 512, 19)])[-1], whole[-1])


def test_a_long_context_is_folded_from_its_first_split() -> None:
    """More splits than are on their way at once, and the same in a tile."""
    scene = Scene(shape=heads(1), max_len=256 * 20 + 5)
    last = scene.max_len - 1
    check(scene, [decoded(0, last)])
    tile = scene.attend([Piece(0, last - 1, 2)])[1:]
    np.testing.assert_array_equal(tile, scene.attend([decoded(0, last)]))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_prompt_has_the_same_bits_however_it_is_cut(seed: int) -> None:
    rng = np.random.default_rng(seed)
    span = (CAUSAL, Window(90), Window(280), Chunk(100))[seed]
    scene = Scene(shape=heads(3), max_len=330, span=span, block_size=(16, 64, 128, 16)[seed])
    cuts = np.unique([0, 330, *rng.integers(1, 330, 4), *(at := rng.integers(1, 329, 3)), *(at + 1)])
    pieces = [
        Piece(0, int(first), int(end - first), in_kv_splits=end - first == 1) for first, end in pairwise(cuts)
    ]
    assert any(piece.in_kv_splits for piece in pieces)
    whole = scene.attend([Piece(0, 0, 330)])
    np.testing.assert_array_equal(np.concatenate([scene.attend([piece]) for piece in pieces]), whole)
    np.testing.assert_array_equal(scene.attend(pieces), whole)
