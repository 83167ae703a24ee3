"""Each architecture of GGUF files: the same Program, and the same weights, as its checkpoint of transformers
gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from firelane.errors import UnsupportedModelError
from firelane.models.config.reader import read_config
from firelane.models.gguf.families import FAMILIES
from firelane.models.registry import load_program
from firelane.program.recipes import widened
from firelane.program.values import Weight
from firelane.sources.gguf import model_directory
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.packing.pieces import read_piece
from tests.models import gguf_rows, gguf_rows_changed, toy_dense
from tests.models.families import random_tensors
from tests.models.gguf_rows import Row
from tests.models.gguf_writer import write_gguf
from tests.models.toy_config import Config
from tests.weights.files import write_safetensors

ROWS = gguf_rows.ROWS | gguf_rows_changed.ROWS


def written(row: Row, directory: Path) -> tuple[Config, Path, Path]:
    """The toy's config, a checkpoint of it as transformers writes it, and the directory of its GGUF file."""
    config = row.toy() | row.change | {"torch_dtype": "float32"}
    tensors = random_tensors(config, 0)
    write_safetensors(directory / "model.safetensors", tensors, "float32")
    path = write_gguf(
        directory / "toy.gguf",
        row.architecture,
        config,
        tensors,
        fields=row.fields,
        in_pairs=row.in_pairs,
        changes=row.changes,
        extra={name: np.array(values) for name, values in row.extra.items()},
    )
    return config, directory, model_directory(path, directory / "cache")


@pytest.mark.parametrize("name", ROWS)
def test_program_and_weights_are_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    config, original, directory = written(ROWS[name], tmp_path)
    expected, program = load_program(config), load_program(read_config(directory))
    assert program.max_model_len == expected.max_model_len
    for op, other in zip(program.ops, expected.ops, strict=True):
        assert op == other
    first, second = Checkpoint.open(original), Checkpoint.open(directory)
    wanted = {w.name: _numbers(w, first) for w in fitted(expected, first).weights}
    for weight in fitted(program, second).weights:
        slack = 1e-6 if weight.name.lower().endswith("a_log") else 0.0  # of exp and log
        found = _numbers(weight, second)
        np.testing.assert_allclose(found, wanted[weight.name], rtol=0, atol=slack, err_msg=weight.name)


def _numbers(weight: Weight, checkpoint: Checkpoint) -> np.ndarray:
    pieces = (read_piece(checkpoint, piece, range(piece.height)) for piece in weight.pieces)
    return np.concatenate([widened(values) for values in pieces])


def test_each_architecture_has_a_row() -> None:
    assert {row.architecture for row in ROWS.values()} == {name.split()[0] for name in FAMILIES}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rope.scaling.type": "stretched"}, r"rope\.scaling\.type = stretched"),
        ({"attention.value_length": 8}, r"value_length = 8"),
        ({"attention.head_count": [4, 5]}, "layers that differ"),
    ],
)
def test_what_would_change_the_result_is_refused(fields: dict[str, Any], says: str, tmp_path: Path) -> None:
    config = toy_dense.llama2() | {"torch_dtype": "float32"}
    path = tmp_path / "toy.gguf"
    write_gguf(path, "llama", config, random_tensors(config, 0), fields={}, in_pairs=True)
    replaced = tmp_path / "changed.gguf"
    _with_fields(path, replaced, fields)
    with pytest.raises(UnsupportedModelError, match=says):
        model_directory(replaced, tmp_path / "cache")


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    config = toy_dense.llama2() | {"torch_dtype": "float32"}
    write_gguf(tmp_path / "toy.gguf", "llama", config, random_tensors(config, 0), fields={})
    _with_fields(tmp_path / "toy.gguf", tmp_path / "other.gguf", {}, architecture="falcon")
    with pytest.raises(UnsupportedModelError, match="architecture 'falcon' are not supported"):
        model_directory(tmp_path / "other.gguf", tmp_path / "cache")


def _with_fields(path: Path, to: Path, fields: dict[str, Any], architecture: str = "llama") -> None:
    """A copy with other metadata of its architecture."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(to, architecture)
    for name, entry in reader.fields.items():
        key = name.replace("llama.", f"{architecture}.", 1) if name.startswith("llama.") else name
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        short = key.removeprefix(f"{architecture}.")
        value = fields.get(short, entry.contents())
        kind = gguf.GGUFValueType.ARRAY if isinstance(value, list) else entry.types[0]
        writer.add_key_value(key, value, kind, sub_type=entry.types[-1] if isinstance(value, list) else None)
    for short, value in fields.items():
        if f"llama.{short}" not in reader.fields:
            writer.add_string(f"{architecture}.{short}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
