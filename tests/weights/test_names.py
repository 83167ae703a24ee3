"""Names of tensors: one model under each prefix that checkpoints are published with."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from firelane.errors import CheckpointError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.names import TensorNames, other_part
from firelane.weights.storage.files import SINGLE
from tests.models.families import FAMILIES, make_checkpoint, random_tensors
from tests.weights.files import write_safetensors

LAYOUTS = {
    "plain": ("model.", "lm_head."),
    "shell": ("language_model.model.", "language_model.lm_head."),
    "inner": ("model.language_model.", "lm_head."),
    "bare": ("", "lm_head."),
}
OTHERS = [
    "vision_tower.blocks.0.weight",
    "model.vision_tower.blocks.0.weight",
    "model.visual.patch_embed.weight",
    "multi_modal_projector.linear.weight",
    "audio_tower.conv.weight",
    "mtp.fc.weight",
]
ONE = np.ones(3, np.float32)


def published(layout: str) -> dict[str, np.ndarray]:
    body, head = LAYOUTS[layout]
    tensors = random_tensors(FAMILIES["llama2"](), 0)
    return {
        body + name.removeprefix("model.") if name.startswith("model.") else name.replace("lm_head.", head): x
        for name, x in tensors.items()
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint("llama2", "float32", tmp_path / "m")


def rewrite(model: Path, tensors: dict[str, np.ndarray]) -> Checkpoint:
    write_safetensors(model / SINGLE, tensors)
    return Checkpoint.open(model)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(model: Path, layout: str) -> None:
    checkpoint = rewrite(model, published(layout))
    checkpoint.check_against(load_program(read_config(model)))
    tensors = random_tensors(FAMILIES["llama2"](), 0)
    assert set(checkpoint.names) == set(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), values)
        np.testing.assert_array_equal(checkpoint.rows(name, 1, 3), values[1:3])
        np.testing.assert_array_equal(checkpoint.elements(name, 2, 9), values.reshape(-1)[2:9])
        assert checkpoint.dtype(name) == "F32"


@pytest.mark.parametrize("layout", ["plain", "shell", "inner"])
def test_other_parts_are_skipped_and_told_once(
    model: Path, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = rewrite(model, published(layout) | dict.fromkeys(OTHERS, ONE))
    with caplog.at_level(logging.INFO):
        checkpoint.check_against(load_program(read_config(model)))
    (line,) = [record.getMessage() for record in caplog.records if "tensors_skipped" in record.getMessage()]
    assert line.endswith("parts=audio_tower:1,mtp:1,multi_modal_projector:1,vision_tower:2,visual:1")


def test_nothing_is_told_of_a_model_of_text(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        rewrite(model, published("plain")).check_against(load_program(read_config(model)))
    assert "tensors_skipped" not in caplog.text


def test_layers_of_a_predictor_are_skipped(model: Path) -> None:
    checkpoint = rewrite(model, published("plain") | {"model.layers.2.eh_proj.weight": ONE})
    config = read_config(model)
    with pytest.raises(CheckpointError, match=r"model\.layers\.2\.eh_proj\.weight is not part of this model"):
        checkpoint.check_against(load_program(config))
    checkpoint.check_against(load_program(config | {"num_nextn_predict_layers": 1}))


@pytest.mark.parametrize(
    "name", ["vision.weight", "model.layers.20.x.weight", "language_model.model.x.weight"]
)
def test_what_is_of_no_known_part_is_refused(model: Path, name: str) -> None:
    checkpoint = rewrite(model, published("plain") | {name: ONE})
    with pytest.raises(CheckpointError, match=f"{name} is not part of this model"):
        checkpoint.check_against(load_program(read_config(model)))


def test_two_language_models_are_refused(model: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"model\.embed_tokens\.weight and language_model\.model\.embed_tokens\.weight are both there",
    ):
        rewrite(model, published("plain") | published("shell"))


def test_two_tensors_of_one_name_are_refused(model: Path) -> None:
    """Beside a model under a prefix lies a tensor of its name without."""
    with pytest.raises(CheckpointError, match=r"model\.language_model\.norm\.weight and model\.norm\.weight"):
        rewrite(model, published("inner") | {"model.norm.weight": ONE})


def test_a_missing_tensor_is_told_by_the_name_that_families_know(model: Path) -> None:
    tensors = published("shell")
    del tensors["language_model.model.norm.weight"]
    checkpoint = rewrite(model, tensors)
    with pytest.raises(CheckpointError, match=r"tensor model\.norm\.weight is missing"):
        checkpoint.check_against(load_program(read_config(model)))


def test_names_without_a_language_model_are_left_alone() -> None:
    names = TensorNames.find(["a", "language_model.b", "lm_head.weight"])
    known = [names.known(name) for name in ("a", "language_model.b", "lm_head.weight", "model.c")]
    assert known == ["a", "language_model.b", "lm_head.weight", "model.c"]


def test_other_parts() -> None:
    assert other_part("model.layers.61.mlp.weight", ("model.layers.61.",)) == "model.layers.61"
    assert other_part("model.layers.6.mlp.weight", ("model.layers.61.",)) == ""
    assert other_part("visually.weight", ()) == ""
