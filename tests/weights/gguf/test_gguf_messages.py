"""Errors of a model in a GGUF file name the file that was given, not what was made of it."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from firelane.errors import CheckpointError, UsageError
from firelane.models.registry import load_program
from firelane.sources.gguf import model_directory
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.packing.packer import not_finite
from firelane.weights.quantizing.schemes import SCHEMES
from tests.models import toy_dense
from tests.models.families import random_tensors
from tests.models.gguf_writer import write_gguf


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    config = toy_dense.llama2() | {"torch_dtype": "float32"}
    tensors = random_tensors(config, 0)
    path = write_gguf(tmp_path / "given.gguf", "llama", config, tensors, fields={}, in_pairs=True)
    return Checkpoint.open(model_directory(path, tmp_path / "cache"))


def test_errors_name_the_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = json.loads((checkpoint.directory / "config.json").read_text())
    wider = load_program(config | {"intermediate_size": 152})
    errors = [not_finite(checkpoint, "model.norm.weight")]
    for fails in (lambda: checkpoint.tensor("model.nothing"), lambda: fitted(wider, checkpoint)):
        with pytest.raises(CheckpointError) as caught:
            fails()
        errors.append(caught.value)
    for error in errors:
        assert str(error).startswith(f"{(tmp_path / 'given.gguf').resolve()}: ")
        assert "cache" not in str(error)


def test_a_file_that_was_changed_is_named(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "given.gguf"
    path.write_bytes(path.read_bytes() + bytes(64))
    with pytest.raises(CheckpointError, match=r"given\.gguf: the GGUF file has been changed or moved"):
        Checkpoint.open(checkpoint.directory)


def test_what_is_quantised_already_is_named(tmp_path: Path) -> None:
    def coded(values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        kind = gguf.GGMLQuantizationType.Q8_0
        return gguf.quantize(values, kind), kind

    config = toy_dense.llama2() | {"torch_dtype": "float32", "hidden_size": 160, "intermediate_size": 288}
    path, tensors = tmp_path / "given.gguf", random_tensors(config, 0)
    write_gguf(path, "llama", config, tensors, fields={}, in_pairs=True, quantise=coded)
    checkpoint = Checkpoint.open(model_directory(path, tmp_path / "cache"))
    with pytest.raises(UsageError, match=r"given\.gguf are quantised already"):
        checkpoint.quantize(checkpoint.names, SCHEMES["int8"])
