"""GGUF files as checkpoints: a quantised matrix is the bf16 matrix of its dequantised numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from firelane.errors import CheckpointError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.recipes import widened
from firelane.sources.gguf import model_directory
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.packing.pieces import coded_format, read_codes
from firelane.weights.storage.reader import ReadBuffer
from tests.models import toy_dense
from tests.models.families import random_tensors
from tests.models.gguf_rows_changed import ROWS
from tests.models.gguf_writer import write_gguf

KINDS = {
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
    "Q4_0": gguf.GGMLQuantizationType.Q4_0,
    "Q5_1": gguf.GGMLQuantizationType.Q5_1,
    "BF16": gguf.GGMLQuantizationType.BF16,
}
CONFIG = toy_dense.llama2() | {"torch_dtype": "float32", "hidden_size": 96, "num_attention_heads": 6}
CONFIG["intermediate_size"] = 160


def quantiser(kind: str):
    def quantise(values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        return gguf.quants.quantize(values, KINDS[kind]), KINDS[kind]

    return quantise


@pytest.fixture(scope="module", params=KINDS)
def coded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """The type, the file, and the directory that was made of it."""
    directory = tmp_path_factory.mktemp(request.param)
    path = directory / "toy.gguf"
    write_gguf(
        path, "llama", CONFIG, random_tensors(CONFIG, 0), fields={}, in_pairs=True,
        quantise=quantiser(request.param),
    )  # fmt: skip
    return request.param, path, model_directory(path, directory / "cache")


def test_matrices_are_those_of_the_dequantised_numbers(coded: tuple[str, Path, Path]) -> None:
    kind, path, directory = coded
    checkpoint = Checkpoint.open(directory)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for ours, theirs in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v")):
        found = checkpoint.tensor(f"model.layers.1.{ours}.weight")
        tensor = stored[f"blk.1.{theirs}.weight"]
        values = gguf.quants.dequantize(tensor.data, KINDS[kind])
        assert checkpoint.dtype(f"model.layers.1.{ours}.weight") == "BF16"
        np.testing.assert_array_equal(found, bf16_bits(values.reshape(found.shape)))


def test_parts_are_parts_of_the_whole(coded: tuple[str, Path, Path]) -> None:
    checkpoint = Checkpoint.open(coded[2])
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight"):
        whole = checkpoint.tensor(name).reshape(-1)
        buffer = ReadBuffer(whole.nbytes)
        for first, last in ((0, len(whole)), (5, 6), (37, 61), (3, 3)):
            np.testing.assert_array_equal(checkpoint.elements(name, first, last), whole[first:last])
            np.testing.assert_array_equal(checkpoint.elements(name, first, last, buffer), whole[first:last])
    rows = checkpoint.rows("model.layers.0.self_attn.q_proj.weight", 2, 9)
    np.testing.assert_array_equal(rows, checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")[2:9])


def test_directory_is_made_once_and_again_when_the_file_changes(
    coded: tuple[str, Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "toy.gguf"
    shutil.copy(coded[1], path)
    directory = model_directory(path, tmp_path / "cache")
    made = (directory / "gguf.json").stat().st_mtime_ns
    assert model_directory(path, tmp_path / "cache") == directory
    assert (directory / "gguf.json").stat().st_mtime_ns == made
    before = Checkpoint.open(directory).fingerprint
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(CheckpointError, match="has been changed or moved"):
        Checkpoint.open(directory)
    model_directory(path, tmp_path / "cache")
    assert Checkpoint.open(directory).fingerprint != before


def test_inputs_in_another_order_keep_their_codes(tmp_path: Path) -> None:
    """The value heads of Qwen3.5's output projections lie in another order."""
    row = ROWS["qwen35"]
    config = row.toy() | {"torch_dtype": "float32", "linear_value_head_dim": 32}
    tensors, name = random_tensors(config, 0), "model.layers.0.linear_attn.out_proj.weight"

    def quantise(values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        kind = KINDS["Q8_0"] if values.shape[-1] == 128 else gguf.GGMLQuantizationType.F32
        return gguf.quants.quantize(values, kind), kind

    fields = row.fields | {"ssm.inner_size": 128}
    path = write_gguf(
        tmp_path / "toy.gguf", row.architecture, config, tensors,
        fields=fields, changes=row.changes, quantise=quantise,
    )  # fmt: skip
    checkpoint = Checkpoint.open(model_directory(path, tmp_path / "cache"))
    found = checkpoint.codes(name, 3, 70)
    np.testing.assert_array_equal(bf16_bits(found.values()), checkpoint.rows(name, 3, 70))
    expected = gguf.quants.dequantize(gguf.quants.quantize(tensors[name], KINDS["Q8_0"]), KINDS["Q8_0"])
    np.testing.assert_array_equal(found.values(), expected[3:70])
    format_ = checkpoint.format(name)
    assert format_ is not None
    assert format_.grouping is not None


def test_experts_of_gpt_oss_keep_their_codes(tmp_path: Path) -> None:
    """MXFP4, as they are published: a tensor for each expert, in its own rows."""
    row, kind = ROWS["gpt-oss"], gguf.GGMLQuantizationType.MXFP4
    config = row.toy() | row.change | {"torch_dtype": "bfloat16", "hidden_size": 96, "intermediate_size": 64}
    tensors = random_tensors(config, 0)

    def quantise(values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        chosen = kind if values.ndim == 3 else gguf.GGMLQuantizationType.BF16
        return gguf.quants.quantize(values, chosen), chosen

    fields = row.fields | {"expert_feed_forward_length": 64}
    path = write_gguf(
        tmp_path / "toy.gguf", row.architecture, config, tensors,
        fields=fields, changes=row.changes, quantise=quantise,
    )  # fmt: skip
    directory = model_directory(path, tmp_path / "cache")
    checkpoint = Checkpoint.open(directory)
    program = fitted(load_program(read_config(directory)), checkpoint)
    weights = {w.name: w for w in program.weights}
    gate_up, bias = weights["layers.0.experts_gate_up"], weights["layers.0.experts_gate_up_bias"]
    assert coded_format(checkpoint, gate_up) is not None
    found = np.concatenate([read_codes(checkpoint, p, range(p.height)).values() for p in gate_up.pieces])
    columns = tensors["model.layers.0.mlp.experts.gate_up_proj"].swapaxes(1, 2)
    halves = np.concatenate([columns[:, ::2], columns[:, 1::2]], axis=1).reshape(-1, 96)
    np.testing.assert_array_equal(found, gguf.quants.dequantize(gguf.quants.quantize(halves, kind), kind))
    assert {checkpoint.dtype(piece.tensor) for piece in bias.pieces} == {"F32"}


def test_bf16_rounds_to_nearest_even() -> None:
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7, -1e-40, np.inf, np.nan, 3.4e38], np.float32)
    found = widened(bf16_bits(values))
    assert found[:4].tolist() == [1, 1, 1 + 2**-6, 1 + 2**-7]
    assert np.isinf(found[5])
    assert np.isnan(found[6])
    assert np.isinf(found[7])
