"""Files of sentence-transformers: what encoders read of them, and those that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firelane.errors import CheckpointError, UnsupportedModelError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.ops import Pool
from firelane.program.program import Program
from tests.models.toy_encoders import ENCODERS, MAX_LEN, write_sentence_files

MEAN = {"pooling_mode": "mean"}


def program_of(directory: Path, family: str = "bert", **changes: Any) -> Program:
    (directory / "config.json").write_text(json.dumps(ENCODERS[family]() | changes))
    return load_program(read_config(directory))


def pool_of(program: Program) -> str:
    (op,) = (op for op in program.ops if isinstance(op, Pool))
    return op.kind


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        (MEAN, "mean"),
        ({"pooling_mode": "cls", "word_embedding_dimension": 80}, "cls"),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, "max"),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
    ],
)
def test_kinds_of_pooling(tmp_path: Path, pooling: dict[str, Any], kind: str) -> None:
    write_sentence_files(tmp_path, pooling)
    program = program_of(tmp_path)
    assert pool_of(program) == kind
    assert program.unknown_keys == ()


def test_without_files_it_is_the_mean(tmp_path: Path) -> None:
    program = program_of(tmp_path)
    assert (pool_of(program), program.max_model_len) == ("mean", MAX_LEN)


def test_pooling_alone(tmp_path: Path) -> None:
    write_sentence_files(tmp_path, {"pooling_mode": "cls"})
    (tmp_path / "modules.json").unlink()
    assert pool_of(program_of(tmp_path)) == "cls"


@pytest.mark.parametrize(("length", "longest"), [(40, 40), (9999, MAX_LEN)])
def test_the_longest_text(tmp_path: Path, length: int, longest: int) -> None:
    write_sentence_files(tmp_path, MEAN)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    assert program_of(tmp_path).max_model_len == longest


def test_positions_of_roberta_begin_behind_padding(tmp_path: Path) -> None:
    assert program_of(tmp_path, "xlm_roberta").max_model_len == MAX_LEN
    with pytest.raises(UnsupportedModelError, match="max_position_embeddings = 2: more than 2"):
        program_of(tmp_path, "xlm_roberta", max_position_embeddings=2)


@pytest.mark.parametrize(
    ("pooling", "said"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "one is needed"),
        ({"pooling_mode_mean_tokens": False}, "one is needed"),
        ({"pooling_mode_weightedmean_tokens": True}, "one is needed"),
        ({"pooling_mode": "weightedmean"}, "supported: mean, cls, max, lasttoken"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
)
def test_kinds_that_are_refused(tmp_path: Path, pooling: dict[str, Any], said: str) -> None:
    write_sentence_files(tmp_path, pooling)
    with pytest.raises(UnsupportedModelError, match=said):
        program_of(tmp_path)


def test_other_modules_are_refused(tmp_path: Path) -> None:
    write_sentence_files(tmp_path, MEAN, "Dense")
    with pytest.raises(UnsupportedModelError, match="modules = 'Dense': only Transformer"):
        program_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("modules.json", "{", CheckpointError),
        ("modules.json", "{}", CheckpointError),
        ("modules.json", "[1]", CheckpointError),
        ("modules.json", "[" * 100_000, CheckpointError),
        ("1_Pooling/config.json", "[]", CheckpointError),
        ("sentence_bert_config.json", "[]", CheckpointError),
        ("sentence_bert_config.json", '{"max_seq_length": -1}', UnsupportedModelError),
        ("sentence_bert_config.json", '{"max_seq_length": "x"}', UnsupportedModelError),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, text: str, error: type[Exception]) -> None:
    write_sentence_files(tmp_path, MEAN)
    (tmp_path / name).write_text(text)
    with pytest.raises(error):
        program_of(tmp_path)


@pytest.mark.parametrize("path", ["/etc", "../elsewhere", "a/../../b"])
def test_paths_outside_of_the_model(tmp_path: Path, path: str) -> None:
    modules = [{"type": "sentence_transformers.models.Pooling", "path": path}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedModelError, match="outside of the model's directory"):
        program_of(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("bert", {"hidden_act": "relu"}, "hidden_act"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("modernbert", {"attention_bias": True}, "attention_bias"),
        ("modernbert", {"layer_types": ["full_attention"]}, "5 are needed"),
        ("modernbert", {"layer_types": ["chunked_attention"] * 5}, "layer_types"),
        ("nomic_bert", {"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, family: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        program_of(tmp_path, family, **changes)
