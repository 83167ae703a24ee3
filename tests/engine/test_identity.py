"""Identity of a model: equal for engines whose answers are."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from firelane.engine.process.identity import checkpoint_identity, model_identity
from firelane.engine_config import EngineConfig


@pytest.fixture
def model(tmp_path):
    def make(name, scale=1.0, **config):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        save_file({"w": np.full((64, 64), scale, np.float32)}, directory / "model.safetensors")
        return directory

    return make


def test_a_copy_on_another_host_is_the_same_model(model):
    """Which has other times: it was fetched at another moment."""
    here, there = model("here"), model("there")
    os.utime(there / "model.safetensors", (1, 1))
    assert checkpoint_identity(here) == checkpoint_identity(there)
    assert checkpoint_identity(here, times=True) != checkpoint_identity(there, times=True)


def test_other_weights_and_another_config_are_another_model(model):
    found = {checkpoint_identity(made) for made in (model("a"), model("b", 2.0), model("c", more=1))}
    assert len(found) == 3


def test_cpus_that_round_in_other_ways_are_not_alike(tmp_path):
    """Between targets results differ by rounding: a stream could not go on with the same bytes."""
    config = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path)
    found = {
        model_identity("", SimpleNamespace(arithmetic=isa, activation_dtype=inputs, vocab_size=1), config)
        for isa in ("", "avx2", "avx512bf16")
        for inputs in ("bf16", "int8")
    }
    assert len(found) == 6
