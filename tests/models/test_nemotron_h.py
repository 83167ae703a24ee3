"""Nemotron-H: the layers that its config asks for, and the names that its checkpoints are published under."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from firelane.errors import UnsupportedModelError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.ops import Attention, ExpertGatedLinear, StateSpace
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from tests.models.families import FAMILIES, make_checkpoint
from tests.models.test_exactness import logits_of, prompt


def published(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors as NVIDIA names them: another prefix, and one for each expert."""
    found: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        renamed = name.replace("model.", "backbone.", 1)
        block, _, part = renamed.rpartition(".")
        if block.endswith(".experts"):
            found |= {f"{block}.{e}.{part}.weight": one.copy() for e, one in enumerate(value)}
        else:
            found[renamed] = value
    return found


@pytest.mark.parametrize("family", ["nemotron_h", "nemotron_3"])
def test_published_names(tmp_path: Path, family: str) -> None:
    """With layers that predict tokens, which are left out."""
    directory, tokens = make_checkpoint(family, "float32", tmp_path), prompt(20)
    want = logits_of(load_program(read_config(directory)), directory, tokens, [20])
    file = directory / "model.safetensors"
    renamed = published(load_file(file))
    assert "backbone.embeddings.weight" in renamed
    assert "backbone.layers.1.mixer.experts.5.up_proj.weight" in renamed
    save_file(renamed | {"mtp.layers.0.norm.weight": np.ones(80, np.float32)}, file)
    config = read_config(directory) | {"num_nextn_predict_layers": 1}
    program = fitted(load_program(config), Checkpoint.open(directory))
    np.testing.assert_array_equal(logits_of(program, directory, tokens, [20]), want)


def test_the_pattern_says_what_each_layer_is() -> None:
    program = load_program(FAMILIES["nemotron_h"]())
    kinds = [type(op) for op in program.ops if isinstance(op, StateSpace | ExpertGatedLinear | Attention)]
    assert kinds == [StateSpace, ExpertGatedLinear, Attention, StateSpace]
    other = load_program(FAMILIES["nemotron_h"]() | {"hybrid_override_pattern": "*M"})
    kinds = [type(op) for op in other.ops if isinstance(op, StateSpace | ExpertGatedLinear | Attention)]
    assert kinds == [Attention, StateSpace]


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "another letter": ({"hybrid_override_pattern": "M*X"}, "hybrid_override_pattern.*letters M"),
    "no layer": ({"hybrid_override_pattern": ""}, "hybrid_override_pattern"),
    "another name": ({"layers_block_type": ["mamba", "conv"]}, "layers_block_type.*linear_attention"),
    "a window": ({"sliding_window": 128}, "sliding_window = 128"),
    "another function": ({"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
    "a rounded state": ({"mamba_ssm_cache_dtype": "float16"}, "mamba_ssm_cache_dtype"),
    "groups that do not divide": ({"n_groups": 4}, "n_groups = 4"),
    "biases": ({"mlp_bias": True}, "mlp_bias"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=message):
        load_program(FAMILIES["nemotron_h"]() | change)
