"""Rearranged, cut and stacked pieces come out of the packed file as the plain reference makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firelane.errors import CheckpointError
from firelane.program.recipes import WeightLayout, widened
from firelane.program.reference import materialise
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.formats import Format, unpack
from firelane.weights.lossless.pack import pack
from firelane.weights.lossless.writer import Rule
from firelane.weights.packing import pieces as reading
from firelane.weights.packing.census import census
from firelane.weights.packing.loader import load_packed
from firelane.weights.packing.pieces import read_piece
from firelane.weights.storage import reader as drive_reader
from firelane.weights.storage.files import SINGLE
from tests.weights.files import to_bf16, write_safetensors
from tests.weights.toy_recipes import PAIRS, PROGRAM, SHAPES, WEIGHTS, D, K, N, piece


@pytest.fixture(params=["plain", "direct", "lossless"])
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    tensors = {name: to_bf16(rng.standard_normal(shape)) for name, shape in SHAPES.items()}
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text("{}")
    write_safetensors(tmp_path / "plain" / SINGLE, tensors)
    if request.param != "lossless":
        monkeypatch.setattr(drive_reader, "_is_cached", lambda _: request.param == "plain")
        monkeypatch.setattr("firelane.weights.storage.file_bytes.DIRECT_BYTES", 1)
        return tmp_path / "plain"
    pack(tmp_path / "plain", tmp_path / "packed", threads=1, rule=Rule(min_weights=16, chunk_bytes=512))
    return tmp_path / "packed"


@pytest.mark.parametrize("format_", [None, Format.PANEL_CODED4, Format.PANEL_CODED3])
@pytest.mark.parametrize("task_bytes", [1, 1 << 30])
def test_packed_as_the_reference(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: Format | None, task_bytes: int
) -> None:
    monkeypatch.setattr("firelane.weights.packing.packer.TASK_BYTES", task_bytes)
    forms = {} if format_ is None else dict.fromkeys(WEIGHTS, format_)
    packed, checkpoint = load_packed(PROGRAM, model, tmp_path, forms=forms), Checkpoint.open(model)
    for name, weight in WEIGHTS.items():
        p = packed.placed(name)
        found = unpack(packed.array(name), p.format, weight.shape, gated=p.gated)
        np.testing.assert_array_equal(widened(found), materialise(weight, checkpoint.tensor), name)


@pytest.mark.parametrize("sparse", [1, 1 << 30])
def test_any_rows_of_a_piece(model: Path, monkeypatch: pytest.MonkeyPatch, sparse: int) -> None:
    monkeypatch.setattr(reading, "SPARSE", sparse)
    checkpoint = Checkpoint.open(model)
    for weight in WEIGHTS.values():
        for part in weight.pieces:
            alone = replace(
                weight,
                shape=(part.height, part.width)[: 1 if part.is_vector else 2],
                pieces=(part,),
                layout=WeightLayout.PLAIN,
            )
            want = materialise(alone, checkpoint.tensor)
            for rows in (range(part.height), range(part.height // 2, part.height), range(1)):
                found = widened(read_piece(checkpoint, part, rows))
                np.testing.assert_array_equal(found, want[rows.start : rows.stop])


def test_only_what_is_needed_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int, bool]] = []

    def elements(self: Checkpoint, name: str, first: int, last: int, *_: Any, sparse: bool = False) -> Any:
        asked.append((name, first, last, sparse))
        return self.tensor(name).reshape(-1)[first:last]

    monkeypatch.setattr(Checkpoint, "elements", elements)
    checkpoint = Checkpoint.open(model)
    read_piece(checkpoint, piece("k"), range(3, 5))
    read_piece(checkpoint, piece("q", **PAIRS), range(2 * D, 3 * D))
    read_piece(checkpoint, piece("experts", order=(0, 2, 1)), range(2 * N, 2 * N + 4))
    size = K * 2 * N
    assert asked == [
        ("k", 3 * K, 5 * K, False),
        ("q", 2 * D * K, 3 * D * K, False),
        ("experts", size, size + (K - 1) * 2 * N + 4, True),
    ]


def test_the_census_reads_through_the_recipe(model: Path) -> None:
    matrices = [w for w in WEIGHTS.values() if w.is_matrix]
    bits = census(Checkpoint.open(model), PROGRAM, matrices)
    assert set(bits) == {w.name for w in matrices}
    for name in ("qkk", "gated", "turned", "together"):
        assert set(bits[name]) == {Format.PANEL_CODED4, Format.PANEL_CODED3}


def test_damage_names_the_tensor(tmp_path: Path) -> None:
    tensors = {name: np.zeros(shape, np.uint16) for name, shape in SHAPES.items()}
    tensors["experts"][2, 3, 79] = 0x7F80
    write_safetensors(tmp_path / SINGLE, tensors)
    with pytest.raises(CheckpointError, match="tensor experts holds NaN or infinite"):
        load_packed(PROGRAM, tmp_path, tmp_path)


def test_shapes_are_those_of_the_tensors(tmp_path: Path) -> None:
    tensors = {name: np.zeros(shape, np.uint16) for name, shape in SHAPES.items()}
    tensors["experts"] = tensors["experts"].transpose(0, 2, 1).copy()
    write_safetensors(tmp_path / SINGLE, tensors)
    with pytest.raises(CheckpointError, match=r"experts has shape \[3, 80, 128\], not \[3, 128, 80\]"):
        Checkpoint.open(tmp_path).check_against(PROGRAM)
