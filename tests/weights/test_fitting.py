"""Experts stored in each way give the same weights; what is missing or cannot be told is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firelane.errors import CheckpointError
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.program.reference import materialise
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.storage.files import SINGLE
from tests.models.families import FAMILIES, random_tensors
from tests.weights.files import write_safetensors

CONFIG = FAMILIES["qwen3_moe"]()
BLOCK = "model.layers.1.mlp.experts"
Tensors = dict[str, np.ndarray]


def stored(tensors: Tensors, transposed: bool) -> Tensors:
    """All experts of a layer in two tensors."""
    made = {name: values for name, values in tensors.items() if ".experts." not in name}
    blocks = {name.split(".experts.")[0] + ".experts" for name in tensors if ".experts." in name}
    for block in blocks:
        for parts in (("gate",), ("gate", "up"), ("down",)):
            experts = [
                np.concatenate([tensors[f"{block}.{e}.{part}_proj.weight"] for part in parts])
                for e in range(6)
            ]
            values = np.stack([e.T if transposed else e for e in experts])
            if parts != ("gate",):
                made[f"{block}.{'_'.join(parts)}_proj"] = np.ascontiguousarray(values)
    return made


def checkpoint(directory: Path, tensors: Tensors) -> Checkpoint:
    directory.mkdir(exist_ok=True)
    write_safetensors(directory / SINGLE, tensors)
    return Checkpoint.open(directory)


def weights(program: Program, found: Checkpoint) -> dict[str, np.ndarray]:
    return {w.name: materialise(w, found.tensor) for w in fitted(program, found).weights}


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "transposed"])
def test_all_experts_in_one_tensor(tmp_path: Path, transposed: bool) -> None:
    program, tensors = load_program(CONFIG), random_tensors(CONFIG, 0)
    want = weights(program, checkpoint(tmp_path / "each", tensors))
    found = weights(program, checkpoint(tmp_path / "fused", stored(tensors, transposed)))
    assert found.keys() == want.keys()
    for name, values in want.items():
        np.testing.assert_array_equal(found[name], values, name)


def test_a_tensor_missing_for_one_expert(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, 0)
    del tensors[f"{BLOCK}.4.up_proj.weight"]
    with pytest.raises(CheckpointError, match=rf"tensor {BLOCK}.4.up_proj.weight is missing: "):
        fitted(load_program(CONFIG), checkpoint(tmp_path, tensors))


def test_a_fused_tensor_of_another_shape(tmp_path: Path) -> None:
    tensors = stored(random_tensors(CONFIG, 0), transposed=False)
    tensors[f"{BLOCK}.down_proj"] = tensors[f"{BLOCK}.down_proj"][:5]
    with pytest.raises(CheckpointError, match=rf"{BLOCK}.down_proj has shape \[5, 80, 44\]"):
        fitted(load_program(CONFIG), checkpoint(tmp_path, tensors))


def test_one_expert_too_many(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, 0)
    tensors[f"{BLOCK}.6.up_proj.weight"] = tensors[f"{BLOCK}.5.up_proj.weight"]
    with pytest.raises(CheckpointError, match=rf"{BLOCK}.6.up_proj.weight is not part of this model"):
        fitted(load_program(CONFIG), checkpoint(tmp_path, tensors))


def test_a_family_that_stores_experts_in_one_way_tells_for_square_ones(tmp_path: Path) -> None:
    config: dict[str, Any] = FAMILIES["qwen3_5_moe"]()
    for width in (config["hidden_size"] // 2, config["hidden_size"]):
        config |= {"moe_intermediate_size": width}
        tensors = random_tensors(config, 0)
        assert any(
            len(values.shape) == 3 and values.shape[1] == values.shape[2] for values in tensors.values()
        )
        program, found = load_program(config), checkpoint(tmp_path / f"{width}", tensors)
        for weight in fitted(program, found).weights:
            assert len(weight.shape) < 3 or all(piece.is_as_stored for piece in weight.pieces)


@pytest.mark.parametrize(("width", "which"), [(40, "gate_up_proj"), (80, "down_proj")])
def test_square_experts_do_not_tell(tmp_path: Path, width: int, which: str) -> None:
    config: dict[str, Any] = CONFIG | {"moe_intermediate_size": width}
    tensors = random_tensors(config, 0)
    assert fitted(load_program(config), checkpoint(tmp_path / "each", tensors))
    square = checkpoint(tmp_path / "fused", stored(tensors, transposed=False))
    with pytest.raises(CheckpointError, match=rf"{BLOCK}.{which} has shape .* transposed: store each"):
        fitted(load_program(config), square)
