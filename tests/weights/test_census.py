"""The census: estimates from a sample against what packing gives, and what it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.coded import encode
from firelane.weights.formats.formats import Format
from firelane.weights.packing import census as census_module
from firelane.weights.packing.census import census, compresses, estimate
from firelane.weights.packing.loader import load_packed
from firelane.weights.storage.files import SINGLE
from tests.models.families import FAMILIES, make_checkpoint, random_tensors
from tests.weights.files import to_bf16, write_safetensors
from tests.weights.test_coded import panels

W4, W3 = Format.PANEL_CODED4, Format.PANEL_CODED3
SLACK4 = 0.5
Model = tuple[Path, Program]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    path = make_checkpoint("llama2", "bfloat16", tmp_path / "model")
    return path, load_program(read_config(path))


def take(model: Model) -> dict[str, dict[Format, float]]:
    path, program = model
    return census(Checkpoint.open(path), program, program.weights)


def assert_near(bits: float, want: float, form: Format) -> None:
    """Exact for 3 bits; of 4 bits escapes that a pair of steps shares are counted, but not stored."""
    assert want - 1e-9 <= bits <= want + (SLACK4 if form is W4 else 1e-9)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("form", [W4, W3])
def test_whole_samples(
    model: Model, tmp_path: Path, form: Format, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census_module, "MOST_PANELS", 1000)
    if not compiled:
        monkeypatch.setattr(census_module, "coded_library", lambda: None)
    path, program = model
    forms = {w.name: form for w in program.weights}
    packed, bits, compared = load_packed(program, path, tmp_path, forms=forms), take(model), 0
    for w in program.weights:
        p = packed.placed(w.name)
        if p.format is form:
            want = 8 * int(packed.panel_table(w.name)[-1]) / (p.plain_bytes / 2)
            if form in bits[w.name]:
                assert_near(bits[w.name][form], want, form)
                compared += 1
            else:
                assert not compresses(want + SLACK4)
    assert compared > 3


@pytest.mark.parametrize("form", [W4, W3])
def test_estimate_is_what_encoding_gives(form: Format) -> None:
    for name, panel in panels(48).items():
        counts = np.bincount(panel.ravel() >> 7, minlength=512)
        want = 8 * len(encode(panel[None], form)[0]) / panel.size
        if form is W3 or name in ("normal", "zeros", "one exponent"):
            assert_near(estimate([counts], form, 48), want, form)
        else:
            assert estimate([counts], form, 48) >= want, name


def test_weights_that_cannot(model: Model) -> None:
    """Vectors have none; 136 inputs are no multiple of 16."""
    bits = take(model)
    for w in model[1].weights:
        if len(w.shape) == 1:
            assert bits[w.name] == {}
        else:
            assert (W3 in bits[w.name]) == (w.shape[1] % 16 == 0)
            assert W4 in bits[w.name]


def test_float32(tmp_path: Path) -> None:
    path = make_checkpoint("llama2", "float32", tmp_path / "model")
    assert not any(take((path, load_program(read_config(path)))).values())


def test_weights_that_do_not_compress(model: Model) -> None:
    tensors = {n: to_bf16(t) for n, t in random_tensors(FAMILIES["llama2"](), 0).items()}
    name = "model.layers.0.self_attn.o_proj.weight"
    spread = np.random.default_rng(0).integers(0, 2**16, tensors[name].shape, np.uint16)
    tensors[name] = np.where((spread & 0x7F80) == 0x7F80, 0, spread).astype(np.uint16)
    write_safetensors(model[0] / SINGLE, tensors)
    bits = take(model)
    assert bits["layers.0.output"] == {}
    assert bits["layers.1.output"].keys() == {W4, W3}


def test_a_few_panels_are_read(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time the same ones, spread over the weight, and no more than the sample allows."""
    monkeypatch.setattr(census_module, "MOST_PANELS", 3)
    asked: list[tuple[str, int, int]] = []
    elements = Checkpoint.elements

    def watch(self: Checkpoint, name: str, first: int, last: int, *rest: Any) -> np.ndarray:
        asked.append((name, first // 80, last // 80))
        return elements(self, name, first, last, *rest)

    monkeypatch.setattr(Checkpoint, "elements", watch)
    first = take(model)
    before = asked.copy()
    assert sorted(a[1:] for a in asked if a[0] == "lm_head.weight") == [(32, 64), (128, 160), (224, 256)]
    assert take(model) == first
    assert sorted(asked) == sorted([*before, *before])
    asked.clear()
    monkeypatch.setattr(census_module, "SAMPLE_BYTES", 1)
    take(model)
    assert len([a for a in asked if a[0] == "lm_head.weight"]) == 2


def test_nothing_asked(model: Model) -> None:
    path, program = model
    assert census(Checkpoint.open(path), program, []) == {}
    assert compresses(12.5)
    assert not compresses(14)
