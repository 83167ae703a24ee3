"""Stretched rotations in GGUF files are read as llama.cpp reads them, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.gemma_configs import gemma4
from firelane.models.gguf.metadata import Metadata
from firelane.models.gguf.rope import read_rope
from tests.models.gguf_rows import llama3_divisors
from tests.models.test_gguf_hostile import header
from tests.models.toy_dense import llama3

DIM = 16
DIVISORS = "rope_freqs.weight"


def scaling(fields: dict[str, Any], tensors: dict[str, list[float]] | None = None) -> Any:
    theta = {"llama.rope.freq_base": 500000.0}
    entries = {"general.architecture": "llama", **theta, **{f"llama.{k}": v for k, v in fields.items()}}
    vectors = tensors or {}
    shapes = {name: (len(values),) for name, values in vectors.items()}
    return read_rope(Metadata(entries, shapes, vectors.__getitem__), DIM).get("rope_scaling")


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"rope.scaling.factor": 2.0}, 2.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, 4.0),
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
    ],
)
def test_a_factor_alone_is_linear(fields: dict[str, Any], factor: float) -> None:
    assert scaling(fields) == {"rope_type": "linear", "factor": factor}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rope.scaling.type": "none", "rope.scaling.factor": 2.0},
        {"rope.scaling.type": "linear"},
        {"rope.scaling.factor": 1.0},
        {"rope.scaling.factor": 0.0},
        {"rope.scale_linear": 1.0},
    ],
)
def test_nothing_is_stretched(fields: dict[str, Any]) -> None:
    """A factor of 0 stands for none."""
    assert scaling(fields) is None


def test_divisors_and_a_factor_together_are_refused() -> None:
    divisors = {DIVISORS: [float(d) for d in llama3_divisors(llama3())]}
    assert scaling({"rope.scaling.factor": 1.0}, divisors)["rope_type"] == "llama3"
    for fields, name in (
        ({"rope.scaling.factor": 2.0}, r"llama\.rope\.scaling\.factor"),
        ({"rope.scale_linear": 2.0}, r"llama\.rope\.scale_linear"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 1.0}, "yarn"),
    ):
        with pytest.raises(UnsupportedModelError, match=name):
            scaling(fields, divisors)


def test_factors_of_pairs_and_a_factor_together_are_refused() -> None:
    sets = {f"rope_factors_{name}.weight": [1.0] * (DIM // 2) for name in ("long", "short")}
    assert scaling({"rope.scaling.type": "longrope"}, sets)["rope_type"] == "longrope"
    with pytest.raises(UnsupportedModelError, match="rope_factors_long"):
        scaling({"rope.scaling.factor": 4.0}, sets)


def test_families_with_rotations_of_their_own_look_at_it_too() -> None:
    with pytest.raises(UnsupportedModelError, match=r"gemma4\.rope\.scaling\.factor"):
        gemma4(header("gemma4", {"gemma4.rope.scaling.factor": 8.0}))
