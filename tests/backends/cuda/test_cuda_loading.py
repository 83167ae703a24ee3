"""Weights arrive on the device bit for bit, in every form, from every kind of checkpoint; or an error says
why not."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matrices_harness import original_bits, padded, random_bits

from firelane.backends.cuda.loading.loading import load_weights, may_be_coded, planned_bytes, staging_bytes
from firelane.backends.cuda.loading.packing import work_ahead
from firelane.backends.cuda.loading.reading import PortionReader, portions
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.matrices import CodedMatrix, Matrix, PlainMatrix
from firelane.backends.cuda.weights.placement import placements
from firelane.errors import CheckpointError
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.program.recipes import widened
from firelane.program.reference import materialise
from firelane.program.values import DType, Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.lossless.pack import pack
from firelane.weights.lossless.writer import Rule
from firelane.weights.storage import reader as drive_reader
from tests.backends.cuda.host_device import HostDevice
from tests.models.families import FAMILIES, make_checkpoint, random_tensors
from tests.weights import toy_recipes
from tests.weights.files import to_bf16, write_safetensors

Config = dict[str, Any]
CONFIG: Config = FAMILIES["llama3"]() | {
    "hidden_size": 128,
    "intermediate_size": 72,
    "vocab_size": 70,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "head_dim": 32,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""Matrices with 128 inputs may have a range, the one with 72 may not; q, k and v are one matrix, gate and up
another; nothing multiplies with the embedding."""
PROGRAM = load_program(CONFIG)
Tensors = dict[str, np.ndarray]


def tensors(seed: int = 0) -> Tensors:
    """Bits of bf16, matrices with escapes."""
    found = random_tensors(CONFIG, seed)
    return {
        name: random_bits(*values.shape, seed=len(name)) if values.ndim == 2 else to_bf16(values)
        for name, values in found.items()
    }


def write(directory: Path, contents: Tensors) -> Checkpoint:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(directory / "model.safetensors", contents)
    return Checkpoint.open(directory)


def load(checkpoint: Checkpoint, mode: str, program: Program = PROGRAM) -> DeviceWeights:
    return load_weights(program, checkpoint, HostDevice(), mode=mode, threads=2)


def expected(checkpoint: Checkpoint, weight: Weight) -> np.ndarray:
    parts = [checkpoint.tensor(name) for name in weight.tensors]
    if weight.dtype is DType.F32 or len(weight.shape) == 1:
        parts = [
            (p.astype(np.uint32) << 16).view(np.float32) if p.dtype == np.uint16 else p.astype(np.float32)
            for p in parts
        ]
    if len(weight.shape) == 1:
        return np.concatenate(parts)
    return padded(parts if weight.layout.is_gated else [np.concatenate(parts)])


def assert_same(loaded: DeviceWeights, checkpoint: Checkpoint, program: Program = PROGRAM) -> None:
    """Every weight is there, padding is zero."""
    assert {*loaded.matrices, *loaded.vectors} == {w.name for w in program.weights}
    for weight in program.weights:
        true = expected(checkpoint, weight)
        if len(weight.shape) == 1:
            np.testing.assert_array_equal(loaded.vector(weight.name).numpy(), true)
            continue
        matrix = loaded.matrix(weight.name)
        assert (matrix.rows, matrix.k) == weight.shape
        found = original_bits(matrix) if weight.dtype is DType.BF16 else data_of(matrix).numpy()
        np.testing.assert_array_equal(found, true)


def data_of(matrix: Matrix) -> torch.Tensor:
    assert isinstance(matrix, PlainMatrix)
    return matrix.data


@pytest.mark.parametrize(
    ("family", "dtype"), [("llama_bias", "bfloat16"), ("qwen3", "float16"), ("qwen2", "float32")]
)
def test_families(tmp_path: Path, family: str, dtype: str) -> None:
    directory = make_checkpoint(family, dtype, tmp_path)
    program = load_program(json.loads((directory / "config.json").read_text()))
    checkpoint = Checkpoint.open(directory)
    assert_same(load(checkpoint, "auto", program), checkpoint, program)


@pytest.mark.parametrize("portion_bytes", [700, 1 << 20])
@pytest.mark.parametrize("mode", ["bf16", "lossless"])
def test_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, portion_bytes: int) -> None:
    """Rearranged, cut and stacked, each matrix and each half of a gated one padded by itself."""
    monkeypatch.setattr(portions, "__defaults__", (portion_bytes,))
    stored = {name: to_bf16(random_tensor(shape)) for name, shape in toy_recipes.SHAPES.items()}
    checkpoint = write(tmp_path, stored)
    loaded = load(checkpoint, mode, toy_recipes.PROGRAM)
    for place in placements(toy_recipes.PROGRAM, mode):
        weight = place.weight
        true = materialise(weight, checkpoint.tensor)
        if not weight.is_matrix:
            np.testing.assert_array_equal(loaded.vector(weight.name).numpy(), true)
            continue
        matrix = loaded.matrix(weight.name)
        assert (matrix.rows, matrix.k) == (weight.height, weight.k)
        found, true = widened(original_bits(matrix)), true.reshape(-1, weight.k)
        for at in place.segments:
            here = found[at.at : at.at + len(at.rows)]
            np.testing.assert_array_equal(
                here[:, : weight.k], true[at.rows.start : at.rows.stop], weight.name
            )
        assert np.count_nonzero(found) == np.count_nonzero(true)


def random_tensor(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("portion_bytes", [700, 1 << 20])
def test_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portion_bytes: int) -> None:
    monkeypatch.setattr(portions, "__defaults__", (portion_bytes,))
    checkpoint = write(tmp_path, tensors())
    plain, coded = load(checkpoint, "bf16"), load(checkpoint, "lossless")
    for mode, loaded in (("bf16", plain), ("lossless", coded)):
        assert_same(loaded, checkpoint)
        planned = planned_bytes(PROGRAM, mode)
        assert loaded.nbytes <= planned < loaded.nbytes + len(PROGRAM.weights) * 4096
    assert not any(isinstance(m, CodedMatrix) for m in plain.matrices.values())
    for name, matrix in coded.matrices.items():
        assert isinstance(matrix, CodedMatrix) == (matrix.k == 128)
        if isinstance(matrix, CodedMatrix) and "embed" not in name:
            same_escapes(matrix, plain.matrices[name])
    assert coded.nbytes < plain.nbytes


def same_escapes(coded: Matrix, plain: Matrix) -> None:
    for field in ("starts", "where", "values"):
        assert torch.equal(getattr(coded.escapes, field), getattr(plain.escapes, field))
    assert len(plain.escapes.where) > 10


def test_matrix_without_a_range(tmp_path: Path) -> None:
    """Exponents all over the range: it stays as it is in every mode, its neighbours do not."""
    contents = tensors()
    name = next(n for n in contents if "o_proj" in n)
    rng = np.random.default_rng(0)
    contents[name] = rng.integers(0, 0x7F80, contents[name].shape, np.uint16)
    checkpoint = write(tmp_path, contents)
    for mode in ("bf16", "lossless"):
        loaded = load(checkpoint, mode)
        assert_same(loaded, checkpoint)
        matrix = next(m for n, m in loaded.matrices.items() if "o_proj" in n or "output" in n)
        assert isinstance(matrix, PlainMatrix)
        assert matrix.escapes.starts.count_nonzero() == 0


@pytest.mark.parametrize("direct", [False, True])
def test_packed_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    plain = write(tmp_path / "plain", tensors())
    pack(tmp_path / "plain", tmp_path / "packed", threads=1, rule=Rule(min_weights=16, chunk_bytes=1024))
    monkeypatch.setattr(drive_reader, "_is_cached", lambda _: not direct)
    assert_same(load(Checkpoint.open(tmp_path / "packed"), "bf16"), plain)
    assert_same(load(Checkpoint.open(tmp_path / "plain"), "bf16"), plain)


def test_damaged_packed_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "plain", tensors())
    pack(tmp_path / "plain", tmp_path / "packed", threads=1, rule=Rule(min_weights=16, chunk_bytes=1024))
    path = tmp_path / "packed" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="download or pack it again"):
        load(Checkpoint.open(tmp_path / "packed"), "bf16")


def test_file_that_got_shorter(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, tensors())
    path = tmp_path / "model.safetensors"
    os.truncate(path, path.stat().st_size - 10_000)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(checkpoint, "lossless")
    assert not [t for t in threading.enumerate() if t.name.startswith("read")]


@pytest.mark.parametrize(
    ("part", "mode"),
    [
        ("embed_tokens", "bf16"),
        ("k_proj", "bf16"),
        ("up_proj", "lossless"),
        ("down_proj", "lossless"),
        ("norm", "bf16"),
    ],
)
def test_infinite_weights_name_their_tensor(tmp_path: Path, part: str, mode: str) -> None:
    contents = tensors()
    name = next(n for n in contents if part in n)
    contents[name].flat[-1] = 0xFF80 if mode == "bf16" else 0x7FC0
    with pytest.raises(CheckpointError, match=f"tensor {name} holds NaN or infinite"):
        load(write(tmp_path, contents), mode)
    assert not [t for t in threading.enumerate() if t.name.startswith("read")]


def test_infinite_floats_name_their_tensor(tmp_path: Path) -> None:
    directory = make_checkpoint("llama2", "float32", tmp_path)
    program = load_program(json.loads((directory / "config.json").read_text()))
    contents = random_tensors(json.loads((directory / "config.json").read_text()), 0)
    name = next(n for n in contents if "v_proj" in n)
    contents[name][0, 0] = np.nan
    write_safetensors(directory / "model.safetensors", contents, "float32")
    with pytest.raises(CheckpointError, match=f"tensor {name} holds NaN or infinite"):
        load(Checkpoint.open(directory), "bf16", program)


def test_progress(tmp_path: Path) -> None:
    seen: list[tuple[str, float, float, str]] = []
    load_weights(
        PROGRAM,
        write(tmp_path, tensors()),
        HostDevice(),
        mode="bf16",
        threads=1,
        progress=lambda *now: seen.append(now),
    )
    done = [now[1] for now in seen]
    assert done == sorted(done)
    assert seen[-1] == ("load", PROGRAM.weights_bytes, PROGRAM.weights_bytes, "B")


def test_error_in_progress_ends_the_loading(tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        load_weights(PROGRAM, write(tmp_path, tensors()), HostDevice(), threads=2, progress=fail)
    assert not [t for t in threading.enumerate() if t.name.startswith("read")]


@dataclass
class LateCopy:
    """A fence whose copy happens when it is waited for, as late as a device may."""

    copy: Callable[[], object]

    def wait(self, limit_s: float = 0.0) -> None:
        del limit_s
        self.copy()


def test_slots_are_not_written_before_their_fence(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, tensors())
    place = next(p for p in placements(PROGRAM, "bf16") if "embed" in p.weight.name)
    wanted = list(portions(place, 1000))
    target = torch.zeros(place.plain_bytes, dtype=torch.uint8)
    read = PortionReader(checkpoint, HostDevice(), threads=2, longest=1000).read(wanted)
    late: list[LateCopy] = []
    for filled in read:
        at = filled.portion.at * place.row_bytes
        room = target[at : at + filled.portion.nbytes]
        filled.slot.fence = LateCopy(lambda room=room, data=filled.data: room.copy_(data))
        late.append(filled.slot.fence)
    for fence in late[-6:]:  # 3 slots a thread: nobody waited for the last ones
        fence.wait()
    (name,) = place.weight.tensors
    bits = target.numpy().view(np.uint16).reshape(place.padded_rows, -1)[: place.weight.shape[0]]
    np.testing.assert_array_equal(bits, checkpoint.tensor(name))


def test_staging_holds_the_largest_matrix() -> None:
    assert staging_bytes(PROGRAM) == 4 * 64 * 128 * 2  # gate and up: 72 rows each, padded
    assert staging_bytes(PROGRAM, "bf16") == 0


def test_who_may_be_in_the_coded_form() -> None:
    for weight in PROGRAM.weights:
        assert may_be_coded(PROGRAM, weight, "auto") == (len(weight.shape) == 2 and weight.shape[1] == 128)
        assert not may_be_coded(PROGRAM, weight, "bf16")
    assert placements(PROGRAM, "auto") == placements(PROGRAM, "lossless")


def test_kernels_are_known_ahead() -> None:
    def names(mode: str) -> set[str]:
        return {launch.name for launch in work_ahead(placements(PROGRAM, mode))}

    assert names("bf16") == {"find_ranges_kernel", "split_kernel"}
    assert names("lossless") == {"find_ranges_kernel", "encode_kernel"}
