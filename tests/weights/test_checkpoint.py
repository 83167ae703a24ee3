from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from firelane.errors import CheckpointError, ModelNotFoundError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.storage.files import INDEX, SINGLE
from firelane.weights.storage.fingerprint import sampled_ranges
from firelane.weights.storage.safetensors import SafetensorsFile
from tests.models.families import FAMILIES, make_checkpoint, random_tensors
from tests.weights.files import write_safetensors


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint("llama2", "float32", tmp_path / "m")


@pytest.fixture
def program(model: Path) -> Program:
    return load_program(read_config(model))


def rewrite(model: Path, **changes: np.ndarray | None) -> Checkpoint:
    """The checkpoint with some tensors replaced or (None) left out; dots in names are written as __."""
    tensors = random_tensors(FAMILIES["llama2"](), 0)
    for name, values in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if values is not None:
            tensors[name.replace("__", ".")] = values
    write_safetensors(model / SINGLE, tensors)
    return Checkpoint.open(model)


def shard(model: Path) -> dict[str, str]:
    """Split the single file in two; returns the index's weight_map."""
    tensors = random_tensors(FAMILIES["llama2"](), 0)
    names = sorted(tensors)
    weight_map = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        write_safetensors(model / file, {n: tensors[n] for n in names if weight_map[n] == file})
    (model / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (model / SINGLE).unlink()
    return weight_map


def test_good(model: Path, program: Program) -> None:
    checkpoint = Checkpoint.open(model)
    checkpoint.check_against(program)
    assert checkpoint.tensor("model.norm.weight").shape == (80,)


def test_rows(model: Path) -> None:
    checkpoint = Checkpoint.open(model)
    whole = checkpoint.tensor("lm_head.weight")
    np.testing.assert_array_equal(checkpoint.rows("lm_head.weight", 7, 40), whole[7:40])
    assert checkpoint.rows("lm_head.weight", 5, 5).shape == (0, 80)
    for first, last in [(-1, 3), (3, 2), (0, 262)]:
        with pytest.raises(IndexError, match="not rows"):
            checkpoint.rows("lm_head.weight", first, last)


def test_missing_tensor(model: Path, program: Program) -> None:
    checkpoint = rewrite(model, model__norm__weight=None)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is missing"):
        checkpoint.check_against(program)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is missing"):
        checkpoint.tensor("model.norm.weight")


def test_wrong_shape(model: Path, program: Program) -> None:
    checkpoint = rewrite(model, lm_head__weight=np.zeros((3, 80), np.float32))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight has shape \[3, 80\], not \[261, 80\]"):
        checkpoint.check_against(program)


def test_wrong_dtype(model: Path) -> None:
    bf16 = load_program(FAMILIES["llama2"]() | {"torch_dtype": "bfloat16"})
    with pytest.raises(CheckpointError, match=r"has dtype F32, not BF16.* and \d+ more"):
        Checkpoint.open(model).check_against(bf16)


def test_unknown_tensor(model: Path, program: Program) -> None:
    checkpoint = rewrite(model, model__layers__0__self_attn__q_proj__bias=np.zeros(80, np.float32))
    with pytest.raises(CheckpointError, match=r"q_proj\.bias is not part of this model"):
        checkpoint.check_against(program)


def test_derived_tensors_are_ignored(model: Path, program: Program) -> None:
    rewrite(model, model__rotary_emb__inv_freq=np.zeros(8, np.float32)).check_against(program)


def test_shards(model: Path, program: Program) -> None:
    whole = Checkpoint.open(model)
    want = {name: whole.tensor(name).copy() for name in whole.names}
    shard(model)
    sharded = Checkpoint.open(model)
    sharded.check_against(program)
    for name, values in want.items():
        np.testing.assert_array_equal(sharded.tensor(name), values)


def test_missing_shard(model: Path) -> None:
    name = next(iter(shard(model).values()))
    (model / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        Checkpoint.open(model)


def test_index_names_a_tensor_that_is_not_there(model: Path) -> None:
    weight_map = shard(model)
    weight_map["model.extra.weight"] = next(iter(weight_map.values()))
    (model / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"model\.extra\.weight is missing"):
        Checkpoint.open(model)


def test_tensor_in_two_shards(model: Path) -> None:
    weight_map = shard(model)
    first, second = sorted(set(weight_map.values()))
    tensors = {n: np.zeros(1, np.float32) for n in weight_map}
    write_safetensors(model / first, tensors)
    write_safetensors(model / second, tensors)
    with pytest.raises(CheckpointError, match="is also in"):
        Checkpoint.open(model)


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": 3}',
        '{"weight_map": {"a": "../../etc/passwd"}}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": ".."}}',
        '{"weight_map": {"a": "nul\\u0000"}}',
        '{"weight_map": {"a": "%s"}}' % ("x" * 300),
        '{"weight_map": {"a": "%s"}}' % ("x" * 100_000),
    ],
)
def test_hostile_index(tmp_path: Path, index: str) -> None:
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(CheckpointError, match=r"index|is missing") as caught:
        Checkpoint.open(tmp_path)
    assert len(str(caught.value)) < 1000


def test_a_huge_index_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / INDEX).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match="larger than 64 MiB"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("name", [SINGLE, INDEX])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ModelNotFoundError):
        Checkpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        SafetensorsFile(tmp_path / name)


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelNotFoundError, match="only safetensors"):
        Checkpoint.open(tmp_path)


def test_fingerprint_changes_with_the_file(model: Path) -> None:
    first = Checkpoint.open(model).fingerprint
    assert Checkpoint.open(model).fingerprint == first
    os.utime(model / SINGLE, ns=(1, 1))
    assert Checkpoint.open(model).fingerprint != first


def overwrite(path: Path, name: str, at: int, data: bytes) -> None:
    """Change a tensor's bytes in place, as a tool does that keeps the time of the file."""
    before = path.stat()
    begin = SafetensorsFile(path).tensors[name].begin
    with path.open("r+b") as file:
        file.seek(begin + at)
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_fingerprint_tells_every_small_tensor(model: Path) -> None:
    """One bit of any of them, in a file of the same size, time and header."""
    first = Checkpoint.open(model)
    seen = {first.fingerprint}
    for name in first.names:
        overwrite(model / SINGLE, name, 5, b"\x2a")
        seen.add(Checkpoint.open(model).fingerprint)
    assert len(seen) == 1 + len(first.names)


@pytest.mark.parametrize("row", [0, 333, 666, 999])
def test_fingerprint_tells_parts_of_a_large_tensor(tmp_path: Path, row: int) -> None:
    write_safetensors(tmp_path / SINGLE, {"w": np.ones((1000, 1024), np.float32)})
    first = Checkpoint.open(tmp_path).fingerprint
    overwrite(tmp_path / SINGLE, "w", 4096 * row, bytes(4096))
    assert Checkpoint.open(tmp_path).fingerprint != first


def test_fine_tunes_of_one_base_have_other_fingerprints(tmp_path: Path) -> None:
    """Names, sizes, headers and times are equal; one small matrix is not."""
    tensors = random_tensors(FAMILIES["llama2"](), 0)
    found: set[str] = set()
    for tune in range(3):
        changed = {**tensors, "model.layers.1.self_attn.q_proj.weight": np.full((80, 80), tune, np.float32)}
        directory = tmp_path / str(tune)
        directory.mkdir()
        write_safetensors(directory / SINGLE, changed)
        os.utime(directory / SINGLE, ns=(0, 0))
        found.add(Checkpoint.open(directory).fingerprint)
    assert len(found) == 3


def test_a_copy_has_the_same_fingerprint(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "copy")
    assert Checkpoint.open(tmp_path / "copy").fingerprint == Checkpoint.open(model).fingerprint


def test_the_hub_names_the_content(model: Path, tmp_path: Path) -> None:
    first = Checkpoint.open(model).fingerprint
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for digest in ("a" * 64, "b" * 64):
        shutil.copy2(model / SINGLE, blobs / digest)
    (model / SINGLE).unlink()
    seen = {first}
    for digest in ("a" * 64, "b" * 64):
        (model / SINGLE).symlink_to(blobs / digest)
        seen.add(Checkpoint.open(model).fingerprint)
        (model / SINGLE).unlink()
    assert len(seen) == 3


@pytest.mark.parametrize("samples", [1, 2, 4])
@pytest.mark.parametrize("nbytes", [0, 1, 4096, 4097, 8192, 16384, 16385, 1_000_001])
def test_sampled_ranges(nbytes: int, samples: int) -> None:
    begin = 12345
    ranges = list(sampled_ranges(begin, begin + nbytes, samples))
    assert all(begin <= a <= b <= begin + nbytes for a, b in ranges)
    if nbytes <= 4096 * samples:
        assert ranges == [(begin, begin + nbytes)]
    else:
        assert len(ranges) == samples
        assert samples == 1 or (ranges[0][0] == begin and ranges[-1][1] == begin + nbytes)
