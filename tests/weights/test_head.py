"""The head of a checkpoint whose config.json says that it is the embedding table: the tensors decide."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from firelane.errors import CheckpointError
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.program.values import DType
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.checkpoints.head import SLAB_NUMBERS, TENSOR
from firelane.weights.quantize.run import quantize
from firelane.weights.quantizing.schemes import SCHEMES
from firelane.weights.storage.files import SINGLE
from tests.models.families import FAMILIES, random_tensors
from tests.models.toy_config import Config
from tests.weights.files import to_bf16, write_safetensors

TABLE = "model.embed_tokens.weight"
UNTIED = {"tie_word_embeddings": False}
UNSAID = {"tie_word_embeddings": None}
Tensors = dict[str, np.ndarray]


def stored(directory: Path, tensors: Tensors, dtype: str = "float32") -> Checkpoint:
    directory.mkdir(exist_ok=True)
    write_safetensors(directory / SINGLE, tensors, dtype)
    return Checkpoint.open(directory)


def other_head(config: Config) -> Tensors:
    tensors = random_tensors(config, 0)
    return tensors | {TENSOR: tensors[TABLE][::-1].copy()}


def head_of(program: Program) -> tuple[str, ...]:
    assert program.head is not None
    return program.head.weight.tensors


@pytest.mark.parametrize(
    ("family", "said"),
    [("qwen2", {}), ("llama3", {}), ("gemma3", UNSAID), ("ernie4_5_moe", UNSAID), ("granite_hybrid", {})],
)
def test_a_head_that_differs_is_used(
    family: str, said: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = FAMILIES[family]() | {"tie_word_embeddings": True} | said
    checkpoint = stored(tmp_path, other_head(config))
    with caplog.at_level(logging.WARNING):
        found = fitted(load_program(config), checkpoint)
    assert found == fitted(load_program(config | UNTIED), checkpoint)
    assert head_of(found) == (TENSOR,)
    (record,) = caplog.records
    assert "lm_head.weight differs from model.embed_tokens.weight" in record.getMessage()


def test_one_row_that_differs_is_enough(tmp_path: Path) -> None:
    """A fine-tune may change the rows of a few tokens alone."""
    config = FAMILIES["llama3"]() | {"vocab_size": 2 * SLAB_NUMBERS // 96}
    tensors = random_tensors(config, 0)
    head = tensors[TABLE].copy()
    head[-1, -1] += 1
    found = fitted(load_program(config), stored(tmp_path, tensors | {TENSOR: head}))
    assert head_of(found) == (TENSOR,)


@pytest.mark.parametrize("rounds", [False, True])
def test_an_equal_copy_stays_tied(rounds: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that is equal as the model computes, in more bits than the table."""
    config = FAMILIES["llama3"]()
    tensors, dtype = random_tensors(config, 0), DType.BF16 if rounds else DType.F32
    table = to_bf16(tensors[TABLE]) if rounds else tensors[TABLE]
    checkpoint = stored(tmp_path, tensors | {TABLE: table, TENSOR: tensors[TABLE]})
    with caplog.at_level(logging.WARNING):
        found = fitted(load_program(config, dtype=dtype), checkpoint, rounds=rounds)
    assert found == load_program(config, dtype=dtype)
    assert not caplog.records


def test_a_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    config = FAMILIES["llama3"]()
    tensors = other_head(config)
    checkpoint = stored(tmp_path, tensors | {TENSOR: tensors[TENSOR][:-1]})
    with pytest.raises(Exception, match=r"lm_head.weight has shape \[260, 96\], not \[261, 96\]"):
        fitted(load_program(config), checkpoint)


def test_a_tied_matrix_may_be_stored_as_the_head_alone(tmp_path: Path) -> None:
    config = FAMILIES["llama3"]()
    tensors = random_tensors(config, 0)
    tensors[TENSOR] = tensors.pop(TABLE)
    found = fitted(load_program(config), stored(tmp_path, tensors))
    assert head_of(found) == (TENSOR,)
    assert len(found.weights) == len(load_program(config).weights)


def test_flags_of_a_multimodal_config_that_disagree(tmp_path: Path) -> None:
    """With a head it is used, without one the table is."""
    text = FAMILIES["llama3"]()
    for number, outside in enumerate((True, False)):
        section = text | {"tie_word_embeddings": not outside}
        names = {"architectures": text["architectures"], "tie_word_embeddings": outside}
        shell = names | {"text_config": section}
        with_head = stored(tmp_path / f"{number}", other_head(text))
        assert head_of(fitted(load_program(shell), with_head)) == (TENSOR,)
        without = stored(tmp_path / f"{number}.tied", random_tensors(text, 0))
        assert head_of(fitted(load_program(shell), without)) == (TABLE,)


def test_a_quantised_copy_says_that_they_differ(tmp_path: Path) -> None:
    config = FAMILIES["llama3"]()
    model = tmp_path / "model"
    stored(model, other_head(config), "bfloat16")
    (model / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    quantize(load_program(config, dtype=DType.BF16), model, tmp_path / "out", SCHEMES["int8"])
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["tie_word_embeddings"] is False
    found = fitted(load_program(written), Checkpoint.open(tmp_path / "out"))
    assert head_of(found) == (TENSOR,)


@pytest.mark.parametrize("family", ["llama2", "qwen3_moe"])
def test_an_untied_head_that_is_not_stored(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The table stands in for it, and no text may be generated."""
    config = FAMILIES[family]() | UNTIED
    tensors = random_tensors(config, 0)
    whole = fitted(load_program(config), stored(tmp_path / "whole", tensors))
    assert whole.can_generate
    del tensors[TENSOR]
    with caplog.at_level(logging.WARNING):
        found = fitted(load_program(config), stored(tmp_path / "without", tensors))
    assert not found.can_generate
    assert head_of(found) == (TABLE,)
    assert {w.name for w in whole.weights} - {w.name for w in found.weights} == {"lm_head"}
    (record,) = caplog.records
    assert "head_missing model=without: the checkpoint has no lm_head.weight" in record.getMessage()


def test_other_tensors_may_not_be_missing(tmp_path: Path) -> None:
    config = FAMILIES["llama2"]() | UNTIED
    tensors = random_tensors(config, 0)
    del tensors[TENSOR], tensors[TABLE]
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is missing; tensor lm_head.weight is"):
        fitted(load_program(config), stored(tmp_path, tensors))


def test_a_quantised_copy_has_no_head_either(tmp_path: Path) -> None:
    config = FAMILIES["llama2"]() | UNTIED
    tensors, model = random_tensors(config, 0), tmp_path / "model"
    del tensors[TENSOR]
    stored(model, tensors, "bfloat16")
    (model / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    quantize(load_program(config, dtype=DType.BF16), model, tmp_path / "out", SCHEMES["int8"])
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not fitted(load_program(written), Checkpoint.open(tmp_path / "out")).can_generate
