"""The tower of Qwen3-VL, and its language model with images, as the NumPy reference runs them, against
transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from firelane.engine.sequences.places import ImageSpan, Places
from firelane.errors import UnsupportedModelError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.models.towers.find import read_tower
from firelane.program.images import with_images
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from tests.models.test_exactness import DEEP_BF16_BOUND, F32_BOUND
from tests.models.test_multimodal_checkpoints import EXPERTS
from tests.models.towers.tower_run import (
    FACTOR,
    IMAGE_TOKEN,
    TOWER,
    WIDE_TOWER,
    image_rows,
    logits,
    oracle_inputs,
    picture,
    save_toy,
)

SIZES = [(16, 24), (64, 40), (32, 32)]
"""Pixels of pictures: smaller than the table of positions, larger, and higher than wide."""
LAYOUTS = [[10, 0, 7], [0, 0, 5], [3, 1, 0, 4], [6, -1, 3]]
"""Prompts: so many tokens of text, pictures between them; -1 for no text and the same picture again."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    directory = tmp_path_factory.mktemp("qwen3_vl")
    return directory, save_toy(directory)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_rows_of_an_image(toy: tuple[Path, torch.nn.Module], height: int, width: int) -> None:
    directory, model = toy
    tower, pixels = read_tower(directory), picture(height, height, width)
    inputs = oracle_inputs([pixels])
    with torch.no_grad():
        told = model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
    want = [told.pooler_output, *told.deepstack_features]
    want = [part[0] if isinstance(part, tuple | list) else part for part in want]
    got = image_rows(tower, directory, pixels)
    assert got.shape == (height * width // FACTOR**2, 3 * tower.rows.width)
    assert np.ptp(got) > 4
    np.testing.assert_allclose(got, torch.cat(want, dim=1).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("hidden_size", [24, 40, 144])
def test_rows_where_heads_are_padded(tmp_path: Path, hidden_size: int) -> None:
    """Two heads of 12, 20 and 72."""
    model = save_toy(tmp_path, vision=TOWER | {"hidden_size": hidden_size})
    test_rows_of_an_image((tmp_path, model), *SIZES[0])
    test_rows_of_an_image((tmp_path, model), *SIZES[1])


@pytest.mark.parametrize("experts", [None, EXPERTS], ids=["dense", "experts"])
def test_logits_where_heads_are_padded(tmp_path: Path, experts: dict[str, int] | None) -> None:
    model = save_toy(tmp_path, vision=WIDE_TOWER, experts=experts)
    check_logits(tmp_path, model, LAYOUTS[0], F32_BOUND)


def test_logits_in_bf16_where_heads_are_padded(tmp_path: Path) -> None:
    model = save_toy(tmp_path, torch.bfloat16, vision=WIDE_TOWER)
    check_logits(tmp_path, model, LAYOUTS[0], DEEP_BF16_BOUND)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits(toy: tuple[Path, torch.nn.Module], layout: list[int]) -> None:
    """Pictures between texts, at the beginning, side by side, and one of them twice."""
    check_logits(*toy, layout, F32_BOUND)


def test_logits_in_bf16(tmp_path: Path) -> None:
    check_logits(tmp_path, save_toy(tmp_path, torch.bfloat16), LAYOUTS[0], DEEP_BF16_BOUND)


def check_logits(directory: Path, model: torch.nn.Module, layout: list[int], bound: float) -> None:
    tower, rng = read_tower(directory), np.random.default_rng(len(layout))
    tokens, pictures, spans = list[int](), list[np.ndarray](), list[ImageSpan]()
    for number, length in enumerate(layout):
        if number:
            size = SIZES[0 if layout[number - 1] < 0 or length < 0 else number % len(SIZES)]
            pictures.append(picture(1 if -1 in layout else number, *size))
            spans.append(ImageSpan(len(tokens), *(side // FACTOR for side in size)))
            tokens += [IMAGE_TOKEN] * spans[-1].length
        tokens += rng.integers(9, 250, max(1, length) if number else length).tolist()
    features = np.full((len(tokens), tower.rows.features), np.nan, np.float32)
    features[:, 0] = 1
    features[:, 1:4] = Places(spans).of(0, len(tokens))
    for span, pixels in zip(spans, pictures, strict=True):
        features[span.start : span.stop, 0] = 2
        features[span.start : span.stop, 4:] = image_rows(tower, directory, pixels)
    program = with_images(
        fitted(load_program(read_config(directory)), Checkpoint.open(directory)), tower.rows
    )
    ids = np.array(tokens, np.int32)
    got = logits(program, directory, ids, features)
    inputs = oracle_inputs(pictures)
    kinds = torch.tensor((ids == IMAGE_TOKEN)[None].astype(np.int64))
    with torch.no_grad():
        want = model(torch.tensor(ids[None].astype(np.int64)), mm_token_type_ids=kinds, **inputs).logits[0]
    assert np.ptp(got) > 8
    np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=bound)


def test_text_alone_has_the_bits_that_it_has_without_images(toy: tuple[Path, torch.nn.Module]) -> None:
    directory, _ = toy
    tower, plain = read_tower(directory), fitted(load_program(read_config(toy[0])), Checkpoint.open(toy[0]))
    tokens = np.random.default_rng(2).integers(9, 250, 40).astype(np.int32)
    features = np.full((len(tokens), tower.rows.features), np.nan, np.float32)
    features[:, 0], features[:, 1:4] = 0, 0
    got = logits(with_images(plain, tower.rows), directory, tokens, features)
    np.testing.assert_array_equal(got, logits(plain, directory, tokens, features[:, :0]))


def test_positions_of_any_part_are_those_of_the_whole() -> None:
    places = Places([ImageSpan(3, 2, 3), ImageSpan(10, 4, 1)])
    whole = places.of(0, 30)
    assert whole[:, 0].tolist() == [0, 1, 2, *[3] * 6, 6, *[7] * 4, *range(11, 27)]
    assert whole[3:9, 1:].tolist() == [[3, 3], [3, 4], [3, 5], [4, 3], [4, 4], [4, 5]]
    for start in range(30):
        for stop in range(start, 31):
            np.testing.assert_array_equal(places.of(start, stop), whole[start:stop])


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("vision_config", "hidden_act", "relu", "hidden_act"),
        ("vision_config", "num_heads", 3, "num_heads"),
        ("vision_config", "num_position_embeddings", 24, "square"),
        ("vision_config", "out_hidden_size", 64, "out_hidden_size"),
        ("vision_config", "deepstack_visual_indexes", [1, 0], "deepstack_visual_indexes"),
        ("vision_config", "in_channels", 4, "in_channels"),
        ("text_config", "rope_parameters", {"mrope_section": [8, 8, 8]}, "mrope_section"),
    ],
)
def test_configs_that_are_refused(
    toy: tuple[Path, torch.nn.Module], tmp_path: Path, section: str, key: str, value: object, says: str
) -> None:
    config = json.loads((toy[0] / "config.json").read_text())
    config[section][key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=says):
        read_tower(tmp_path)


@pytest.mark.parametrize(
    ("processor", "says"),
    [
        ({"size": {"shortest_edge": 16, "longest_edge": 4096}}, "shortest_edge"),
        ({"size": {"shortest_edge": 8192, "longest_edge": 4096}}, "shortest_edge"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std"),
        ({"image_mean": [0.5]}, "image_mean"),
    ],
)
def test_processors_that_are_refused(
    toy: tuple[Path, torch.nn.Module], tmp_path: Path, processor: dict[str, object], says: str
) -> None:
    (tmp_path / "config.json").write_bytes((toy[0] / "config.json").read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    with pytest.raises(UnsupportedModelError, match=says):
        read_tower(tmp_path)


def test_a_model_without_a_tower_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(UnsupportedModelError, match="no encoder of images is known"):
        read_tower(tmp_path)
    assert len(TOWER["deepstack_visual_indexes"]) == 2
