"""The report's figures, against plain counting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from firelane.weights.lossless.pack import pack_nowhere
from firelane.weights.lossless.report import entropy_bits, mean, range_share, report
from tests.weights.files import to_bf16, write_safetensors


@given(hnp.arrays(np.int64, (2, 256), elements={"min_value": 0, "max_value": 9}))
def test_coded_share(blocks: np.ndarray) -> None:
    blocks[0, 7] += 1
    best = sum(max(int(b[at : at + 7].sum()) for at in range(250)) for b in blocks)
    assert range_share(blocks) == pytest.approx(best / blocks.sum())


def test_entropy() -> None:
    counts = np.zeros(256, np.int64)
    counts[[3, 4]] = 5
    assert entropy_bits(counts) == 1
    assert entropy_bits(np.ones(256, np.int64)) == 8
    assert entropy_bits(counts * (np.arange(256) == 3)) == 0


def test_report_of_known_exponents(tmp_path: Path) -> None:
    """Rows 0 .. 31 have exponents 100 .. 115, evenly; rows 32 .. 63 have 200 alone; 2 more rows have 1 and
    9.
    """
    exponents = np.full((66, 160), 200)
    exponents[:32] = np.arange(160) % 16 + 100
    exponents[64], exponents[65] = 1, 9
    bits = (exponents << 7 | np.arange(160) % 128).astype(np.uint16)
    write_safetensors(
        tmp_path / "model.safetensors",
        {"w": bits, "norm": to_bf16(np.ones(66)), "f": np.ones((4, 4), np.float32)},
    )
    controls = pack_nowhere(tmp_path, threads=2).controls
    w, norm, f = report(tmp_path, controls, threads=2)
    assert (w.name, w.dtype, w.weights) == ("w", "BF16", 66 * 160)
    assert w.wide == pytest.approx((32 * 14 / 16 + 32 + 2) / 66)  # 100 .. 113 are seven pairs; so are 0 .. 13
    assert w.narrow == pytest.approx((32 * 7 / 16 + 32 + 1) / 66)
    assert w.palette == pytest.approx((32 * 15 / 16 + 32) / 66)
    assert w.bits_wide == pytest.approx(12 + 8 * (1 - w.wide))
    assert w.bits_narrow == pytest.approx(11 + 8 * (1 - w.narrow))
    assert 8 < w.bits_at_rest < 12
    assert (norm.entropy, norm.bits_wide, norm.bits_narrow) == (None, 16, 16)
    assert f.bits_wide == 32 < f.bits_at_rest
    assert mean([1.0, 4.0, 4.0], [w, norm, f]) == pytest.approx((w.weights + 4 * 82) / (w.weights + 82))


def test_report_crosses_files_and_tasks(tmp_path: Path) -> None:
    bits = to_bf16(np.random.default_rng(0).standard_normal((3, 500, 1000)))
    write_safetensors(tmp_path / "model.safetensors", {"experts": bits})
    (w,) = report(tmp_path, pack_nowhere(tmp_path, threads=1).controls, threads=3)
    counts = np.bincount((bits.reshape(-1) >> 7) & 255, minlength=256)
    assert w.entropy == pytest.approx(entropy_bits(counts))
    rows = ((bits.reshape(1500, 1000) >> 7) & 255).astype(np.int64)
    blocks = np.stack(
        [np.bincount(rows[at : at + 32].reshape(-1), minlength=256) for at in range(0, 1500, 32)]
    )
    assert w.wide == pytest.approx(range_share(blocks[:, 0::2] + blocks[:, 1::2]))
