"""The estimate is made once for a checkpoint; a file that is not what was written counts for nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cpu_harness import small_spec

from firelane.backends.cpu import cached_estimate as module
from firelane.backends.cpu.cached_estimate import Bits, Cached, cached_estimate
from firelane.weights.formats.formats import Format
from firelane.weights.storage import checked_json
from tests.models.dense import dense_program

PROGRAM = dense_program(small_spec(hidden_size=128, mlp_size=202))
WEIGHTS = list(dict.fromkeys(p.weight for p in PROGRAM.products))
W4, W3 = Format.PANEL_CODED4, Format.PANEL_CODED3


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
    return cached_estimate(tmp_path, checkpoint, PROGRAM, weights)  # type: ignore[arg-type]


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


def change(cached: Cached, name: str, **bits: float) -> Cached:
    return Cached(key=cached.key, bits=cached.bits | {name: bits})


@pytest.mark.parametrize(
    "damage",
    [
        lambda cached: Cached(key="0" * 32, bits=cached.bits),
        lambda cached: Cached(key=cached.key, bits={}),
        lambda cached: change(cached, "another", panel_coded4=12.0),
        lambda cached: change(cached, "layers.0.qkv", panel_coded5=12.0),
        lambda cached: change(cached, "layers.0.qkv", panel_bf16=12.0),
        lambda cached: change(cached, "layers.0.qkv", panel_coded4=15.0),
        lambda cached: change(cached, "layers.0.qkv", panel_coded4=-1.0),
        lambda cached: change(cached, "layers.0.down", panel_coded4=12.0),
    ],
)
def test_what_cannot_be_is_taken_again(tmp_path: Path, taken: list[str], damage) -> None:
    first = take(tmp_path)
    (path,) = (tmp_path / "estimates").iterdir()
    cached = checked_json.read(path, Cached)
    assert cached is not None
    checked_json.write(path, damage(cached))
    assert take(tmp_path) == first
    assert len(taken) == 2


def test_a_damaged_file_never_gives_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    content = Cached(key="k", bits={"w": {"panel_coded4": 12.5}})
    checked_json.write(path, content)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        assert checked_json.read(path, Cached) in (None, content)
        path.write_bytes(whole[:at])
        assert checked_json.read(path, Cached) in (None, content)  # without its last newline it is whole
    path.write_bytes(whole[: len(whole) // 2])
    assert checked_json.read(path, Cached) is None
    assert checked_json.read(tmp_path / "absent", Cached) is None


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path, taken: list[str]) -> None:
    (tmp_path / "estimates").write_text("a file where a directory has to be")
    assert take(tmp_path) == take(tmp_path)
    assert len(taken) == 2
