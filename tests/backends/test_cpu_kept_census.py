"""The census is taken once for a checkpoint; a file that is not what was written counts for nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cpu_harness import small_spec

from firelane.backends.cpu import kept_census as module
from firelane.backends.cpu import sealed
from firelane.backends.cpu.kept_census import Bits, Kept, kept_census
from firelane.backends.cpu.tuning.projections import projections
from firelane.models.dense import dense_program
from firelane.weights.formats import Format

PROGRAM = dense_program(small_spec(hidden_size=128, mlp_size=202))
WEIGHTS = list(projections(PROGRAM))
W4, W3 = Format.PANEL_WINDOW4, Format.PANEL_WINDOW3


class FakeCheckpoint:
    fingerprint = "first"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the weights of each census."""
    counted: list[str] = []

    def census(_: object, __: object, weights: list) -> Bits:
        counted.append(" ".join(w.name for w in weights))
        return {w.name: {W4: 12.25} if w.shape[1] % 4 == 0 else {} for w in weights}

    monkeypatch.setattr(module, "census", census)
    return counted


def take(tmp_path: Path, weights: list = WEIGHTS, fingerprint: str = "first") -> Bits:
    checkpoint = FakeCheckpoint()
    checkpoint.fingerprint = fingerprint
    return kept_census(tmp_path, checkpoint, PROGRAM, weights)  # type: ignore[arg-type]


def test_taken_once(tmp_path: Path, taken: list[str]) -> None:
    first = take(tmp_path)
    assert take(tmp_path) == first
    assert len(taken) == 1
    assert first["layers.0.qkv"] == {W4: 12.25}
    assert first["layers.0.down"] == {}


def test_taken_for_each_checkpoint_and_set_of_weights(tmp_path: Path, taken: list[str]) -> None:
    take(tmp_path)
    take(tmp_path, fingerprint="second")
    take(tmp_path, weights=WEIGHTS[1:])
    assert len(taken) == 3


def change(kept: Kept, name: str, **bits: float) -> Kept:
    return Kept(key=kept.key, bits=kept.bits | {name: bits})


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: Kept(key="0" * 32, bits=kept.bits),
        lambda kept: Kept(key=kept.key, bits={}),
        lambda kept: change(kept, "another", panel_window4=12.0),
        lambda kept: change(kept, "layers.0.qkv", panel_window5=12.0),
        lambda kept: change(kept, "layers.0.qkv", panel_bf16=12.0),
        lambda kept: change(kept, "layers.0.qkv", panel_window4=15.0),
        lambda kept: change(kept, "layers.0.qkv", panel_window4=-1.0),
        lambda kept: change(kept, "layers.0.down", panel_window4=12.0),
    ],
)
def test_what_cannot_be_is_taken_again(tmp_path: Path, taken: list[str], damage) -> None:
    first = take(tmp_path)
    (path,) = (tmp_path / "tuning").iterdir()
    kept = sealed.read(path, Kept)
    assert kept is not None
    sealed.write(path, damage(kept))
    assert take(tmp_path) == first
    assert len(taken) == 2


def test_a_damaged_sealed_file_never_gives_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    content = Kept(key="k", bits={"w": {"panel_window4": 12.5}})
    sealed.write(path, content)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        assert sealed.read(path, Kept) in (None, content)
        path.write_bytes(whole[:at])
        assert sealed.read(path, Kept) in (None, content)  # without its last newline it is whole
    path.write_bytes(whole[: len(whole) // 2])
    assert sealed.read(path, Kept) is None
    assert sealed.read(tmp_path / "absent", Kept) is None


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path, taken: list[str]) -> None:
    (tmp_path / "tuning").write_text("a file where a directory has to be")
    assert take(tmp_path) == take(tmp_path)
    assert len(taken) == 2
