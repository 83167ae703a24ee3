"""RotaryLayout: in the kernels' order, scores are those of the checkpoint's own code."""

from __future__ import annotations

import numpy as np
import pytest

from firelane.models.blocks.rotary_layout import RotaryLayout
from firelane.program.ops import Rotary
from firelane.program.recipes import Piece

HEADS, INPUTS, TOKENS = 3, 5, 4
LAYOUTS = [
    RotaryLayout(16, 16),
    RotaryLayout(16, 8),
    RotaryLayout(16, 4),
    RotaryLayout(16, 12),
    RotaryLayout(12, 2),
    RotaryLayout(6, 4),
    RotaryLayout(16, 16, interleaved=True),
    RotaryLayout(16, 8, interleaved=True),
    RotaryLayout(10, 4, interleaved=True),
]
NAMES = [f"{x.rotated}of{x.head_dim}{'interleaved' * x.interleaved}" for x in LAYOUTS]


def packed(pieces: tuple[Piece, ...], tensor: np.ndarray) -> np.ndarray:
    """The rows of the pieces, one by one."""
    flat, rows = tensor.reshape(-1), []
    for piece in pieces:
        assert piece.shape == tensor.shape
        if piece.is_as_stored:
            at = piece.rows or range(len(tensor))
            rows.append(tensor[at.start : at.stop])
            continue
        columns = np.arange(piece.width) * piece.grid.column_stride
        read = flat[piece.offsets(0, piece.height)[:, None] + columns] + np.float32(piece.plus)
        rows.append(read[:, 0] if piece.is_vector else read)
    return np.concatenate(rows)


def rotated(x: np.ndarray, frequencies: np.ndarray, layout: RotaryLayout) -> np.ndarray:
    """[tokens, heads, d] as checkpoints mean it: token t is at position t."""
    out, r = x.copy(), layout.rotated
    pair = (np.arange(0, r, 2), np.arange(1, r, 2)) if layout.interleaved else np.split(np.arange(r), 2)
    angle = np.arange(len(x))[:, None, None] * frequencies
    low, high = x[..., pair[0]], x[..., pair[1]]
    out[..., pair[0]] = low * np.cos(angle) - high * np.sin(angle)
    out[..., pair[1]] = high * np.cos(angle) + low * np.sin(angle)
    return out


def scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.einsum("qhd,khd->hqk", q, k)


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_scores(layout: RotaryLayout) -> None:
    """With biases, and with norms whose weights differ along the head."""
    rng = np.random.default_rng(0)
    d, pairs = layout.head_dim, layout.rotated // 2
    matrices, biases = rng.standard_normal((2, HEADS * d, INPUTS)), rng.standard_normal((2, HEADS * d))
    norms, x = rng.standard_normal((2, d)), rng.standard_normal((TOKENS, INPUTS))
    frequencies = 0.9 ** np.arange(pairs)
    ours = Rotary(inverse_frequencies=(*frequencies, *[0.0] * (d // 2 - pairs)))
    theirs, kernels = [], []
    for matrix, bias, norm in zip(matrices, biases, norms, strict=True):
        heads = (x @ matrix.T + bias).reshape(TOKENS, HEADS, d)
        theirs.append(rotated(heads * norm, frequencies, layout))
        matrix, bias = (
            packed(layout.matrix("t", HEADS, INPUTS), matrix),
            packed(layout.vector("t", HEADS), bias),
        )
        heads = (x @ matrix.T + bias).reshape(TOKENS, HEADS, d) * packed(layout.vector("t"), norm)
        kernels.append(ours.rotate(heads, np.arange(TOKENS)))
    np.testing.assert_allclose(scores(*kernels), scores(*theirs), atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_rows_before_those_that_turn(layout: RotaryLayout) -> None:
    """Latent attention: of each head the first rows stay where they are, the rest is in order."""
    before, d = 6, layout.head_dim
    tensor = np.arange(HEADS * (before + d) * INPUTS).reshape(-1, INPUTS)
    heads = tensor.reshape(HEADS, before + d, INPUTS)
    got = packed(layout.matrix("t", HEADS, INPUTS, before=before), tensor).reshape(heads.shape)
    np.testing.assert_array_equal(got[:, :before], heads[:, :before])
    for head in range(HEADS):
        want = packed(layout.matrix("t", 1, INPUTS), heads[head, before:])
        np.testing.assert_array_equal(got[head, before:], want)


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_some_heads_of_a_tensor(layout: RotaryLayout) -> None:
    """Queries and keys out of one tensor that holds values, too."""
    tensor = np.arange(HEADS * layout.head_dim * INPUTS).reshape(-1, INPUTS)
    whole = packed(layout.matrix("t", HEADS, INPUTS), tensor).reshape(HEADS, -1)
    for kept in (range(1), range(1, 2), range(1, 3)):
        got = packed(layout.matrix("t", HEADS, INPUTS, kept=kept), tensor)
        np.testing.assert_array_equal(got.reshape(len(kept), -1), whole[kept.start : kept.stop])
        bias = packed(layout.vector("t", HEADS, kept=kept), tensor[:, 0])
        np.testing.assert_array_equal(bias, got[:, 0])


def test_few_pieces() -> None:
    """A tensor is one piece in the layouts that models have, wherever a view can say it."""
    assert len(RotaryLayout(128, 128).matrix("t", 96, 8)) == 1
    assert len(RotaryLayout(128, 64).matrix("t", 96, 8)) == 1
    assert len(RotaryLayout(128, 128, interleaved=True).matrix("t", 96, 8)) == 1
    assert len(RotaryLayout(128, 64, interleaved=True).matrix("t", 96, 8)) == 1
    assert len(RotaryLayout(256, 64).matrix("t", 24, 8)) == 96


def test_norms_stored_less_one() -> None:
    layout, tensor = RotaryLayout(16, 4), np.arange(16, dtype=np.float32)
    got = packed(layout.vector("t", plus=1.0), tensor)
    np.testing.assert_array_equal(got, packed(layout.vector("t"), tensor) + 1)
    assert [piece.plus for piece in layout.vector("t", plus=1.0)] == [1.0] * 4


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_rows_behind_heads_are_left_out(layout: RotaryLayout) -> None:
    """Rows of a head's gate: the others come as if they were stored alone."""
    d, behind = layout.head_dim, 3
    stored = np.random.default_rng(2).standard_normal((HEADS, d + behind, INPUTS)).astype(np.float32)
    alone = packed(layout.matrix("q", HEADS, INPUTS), stored[:, :d].reshape(-1, INPUTS))
    found = packed(layout.matrix("q", HEADS, INPUTS, behind=behind), stored.reshape(-1, INPUTS))
    np.testing.assert_array_equal(found, alone)
