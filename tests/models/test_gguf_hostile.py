"""Metadata and tensors of GGUF files that lie: one line says what is wrong, and nothing large is made."""

from __future__ import annotations

import contextlib
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from firelane.errors import FirelaneError, UnsupportedModelError
from firelane.models.gguf.config import family_of, read_config
from firelane.models.gguf.latent_configs import GLM_FLASH_TOKENS
from firelane.models.gguf.metadata import Metadata
from firelane.models.gguf.names import sources
from firelane.models.registry import load_program
from firelane.sources.gguf import model_directory
from firelane.weights.gguf.index import open_header
from tests.models import gguf_rows, gguf_rows_changed
from tests.models.families import random_tensors
from tests.models.gguf_writer import write_gguf

ROWS = gguf_rows.ROWS | gguf_rows_changed.ROWS
VALUES: list[Any] = [0, -1, 1, 3, 2**32 - 1, 2**63 - 1, 0.5, float("nan"), "no", True]
VALUES += [[], [1], [0] * 9, ["a"] * 9]


def written(name: str, path: Path, fields: dict[str, Any]) -> Path:
    row = ROWS[name]
    config = row.toy() | row.change | {"torch_dtype": "float32"}
    return write_gguf(
        path,
        row.architecture,
        config,
        random_tensors(config, 0),
        fields=row.fields | fields,
        in_pairs=row.in_pairs,
        changes=row.changes,
        extra={key: np.array(values) for key, values in row.extra.items()},
    )


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("llama", {"block_count": 2**31}, "1 to 4096 layers"),
        ("llama", {"block_count": 0}, "a size from 1 on"),
        ("llama", {"rope.dimension_count": 0}, "a size from 1 on"),
        ("llama, long", {"rope.dimension_count": 2**30}, "rope_freqs.weight: divisors"),
        ("mixtral", {"expert_count": 2**32 - 1}, "expert_count"),
        ("deepseek2", {"expert_gating_func": 7}, r"expert_gating_func = 7: 1 \(softmax\)"),
        ("deepseek2", {"attention.key_length_mla": 16}, "some without are needed"),
        ("qwen35", {"ssm.time_step_rank": 8}, "cannot be that of 8 heads of 2 keys"),
        ("qwen35", {"ssm.inner_size": 65}, "do not make it up"),
        ("qwen35", {"ssm.group_count": 0}, "a size from 1 on"),
        ("lfm2", {"attention.head_count_kv": [0, 1]}, "one for each of 4 layers"),
        ("lfm2", {"attention.head_count_kv": [1, 2, 0, 0]}, "layers that differ"),
        ("granitehybrid", {"ssm.inner_size": 165}, "a multiple of the hidden size"),
        ("deci", {"attention.head_count_kv": [1, 2, 2, 0]}, "attention was replaced"),
        ("gemma4", {"sliding_window_pattern": [True], "attention.head_count_kv": [2]}, "one for each of 2"),
        (
            "gemma4, inputs of layers",
            {"attention.head_count_kv": [1, 2, 2, 2]},
            "layers of one kind that differ",
        ),
    ],
)
def test_lies_are_refused(name: str, fields: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = written(name, tmp_path / "toy.gguf", fields)
    with pytest.raises(UnsupportedModelError, match=says) as error:
        model_directory(path, tmp_path / "cache")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "stored", "shape", "says"),
    [
        ("mixtral", "blk.0.ffn_up_exps.weight", (6, 80), "not three axes"),
        ("lfm2", "output_norm.weight", (80,), "are both model.embedding_norm.weight"),
        ("mixtral", "blk.0.ffn_up_exps.lora", (3,), "is not known"),
        ("mixtral", "blk.0.ssm_a", (3,), "is not known"),
        ("mixtral", "nextn.weight", (3,), "is not known"),
        ("llama", "blk.0.attn_q.weight", (81, 80), "cannot be that of 5 heads"),
    ],
)
def test_tensors_that_cannot_be_are_refused(
    name: str, stored: str, shape: tuple[int, ...], says: str
) -> None:
    metadata = header(name)
    metadata.shapes = {**metadata.shapes, stored: shape}
    with pytest.raises(UnsupportedModelError, match=says):
        sources(metadata, family_of(metadata))


def test_vectors_in_blocks_are_refused(tmp_path: Path) -> None:
    """A vector's rows are single numbers, which no block can hold."""
    kind, path = gguf.GGMLQuantizationType.Q8_0, tmp_path / "changed.gguf"
    config = ROWS["llama"].toy() | {"torch_dtype": "float32", "hidden_size": 96, "num_attention_heads": 6}
    write_gguf(tmp_path / "toy.gguf", "llama", config, random_tensors(config, 0), fields={}, in_pairs=True)
    writer, reader = gguf.GGUFWriter(path, "llama"), gguf.GGUFReader(tmp_path / "toy.gguf")
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kinds = {"sub_type": entry.types[-1]} if len(entry.types) > 1 else {}
            writer.add_key_value(name, entry.contents(), entry.types[0], **kinds)
    for tensor in reader.tensors:
        coded = tensor.name == "blk.0.attn_norm.weight"
        data = gguf.quants.quantize(np.array(tensor.data), kind) if coded else np.array(tensor.data)
        writer.add_tensor(tensor.name, data, raw_dtype=kind if coded else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="stored as Q8_0, whose blocks are of 32 inputs"):
        model_directory(path, tmp_path / "cache")


@cache
def entries(name: str) -> dict[str, Any]:
    return dict(_opened(name)[0])


@cache
def _opened(name: str) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    with tempfile.TemporaryDirectory() as directory:
        found = open_header(written(name, Path(directory) / "toy.gguf", {})).header
    return dict(found.metadata), {tensor: place.shape for tensor, place in found.tensors.items()}


def header(name: str, changed: dict[str, Any] | None = None) -> Metadata:
    found, shapes = _opened(name)
    return Metadata(found | (changed or {}), shapes, lambda tensor: [1.0] * shapes[tensor][0])


@pytest.mark.parametrize("name", ROWS)
def test_changed_entries_are_read_or_refused(name: str) -> None:
    """Any of the metadata, replaced by another number or by something else: never another error."""
    rng, found = random.Random(name), entries(name)
    keys = [key for key in found if key.startswith(f"{ROWS[name].architecture}.")]
    for _ in range(40):
        metadata = header(name, {rng.choice(keys): rng.choice(VALUES) for _ in range(rng.choice((1, 1, 2)))})
        with contextlib.suppress(FirelaneError):
            family = family_of(metadata)
            config = read_config(metadata, dtype="float32")
            sources(metadata, family)
            load_program(config)


def test_glm_flash_is_told_from_deepseek_by_its_vocabulary() -> None:
    metadata = header("deepseek2, sigmoids")
    assert family_of(metadata).architecture == "DeepseekV3ForCausalLM"
    metadata.shapes = {**metadata.shapes, "token_embd.weight": (GLM_FLASH_TOKENS, 80)}
    assert load_program(read_config(metadata, dtype="float32")).name == "glm4_moe_lite"
