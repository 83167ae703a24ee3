"""Quantised checkpoints: matrices are the bf16 ones of the dequantised numbers, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

from firelane.errors import CheckpointError, UnsupportedModelError
from firelane.models.registry import load_program
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.values import DType
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codebooks import Codebook, e4m3
from firelane.weights.formats.formats import from_panels
from firelane.weights.formats.grouped import decode, encode, fitted
from firelane.weights.packing.pieces import coded_format, read_codes, read_piece
from firelane.weights.storage.reader import ReadBuffer
from tests.models import toy_dense, toy_latent
from tests.models.families import make_checkpoint, random_tensors
from tests.weights.files import to_bf16, write_safetensors
from tests.weights.quantized.quantized_writers import (
    FORMATS,
    Config,
    Tensors,
    gptq,
    packed,
    words,
    write_tensors,
)
from tests.weights.quantized.twins import answers_of

ANSWERED = [
    "fp8, blocks",
    "awq",
    "gptq, 8 bits",
    "int4",
    "int4 with zero points",
    "int8, rows",
    "nvfp4, divided",
]
CONFIG = toy_dense.qwen3() | {
    "hidden_size": 160,
    "intermediate_size": 288,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}


def write_quantized(name: str, directory: Path, config: Config = CONFIG) -> Path:
    """A toy of that format, and beside it (twin/) the bf16 checkpoint of the numbers that it stands for."""
    make_checkpoint("qwen3", "bfloat16", directory)  # its tokenizer
    make_checkpoint("qwen3", "bfloat16", directory / "twin")
    writer, settings = FORMATS[name]
    stored: Tensors = {}
    numbers: dict[str, np.ndarray] = {}
    for tensor, values in random_tensors(config, 0).items():
        base = tensor.removesuffix(".weight")
        if "_proj" not in tensor:
            half = values.astype(np.float16)
            stored[tensor], numbers[tensor] = ("F16", half), half.astype(np.float32)
            continue
        parts, numbers[tensor] = writer(values)
        stored |= {f"{base}.{part}": written for part, written in parts.items()}
    write_tensors(directory / "model.safetensors", stored)
    matrices = {key: to_bf16(value) if value.ndim > 1 else value for key, value in numbers.items()}
    write_safetensors(directory / "twin" / "model.safetensors", matrices, "float32")
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    (directory / "twin" / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    return directory


@pytest.fixture(scope="module", params=FORMATS)
def checkpoint_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_quantized(request.param, tmp_path_factory.mktemp("quantized"))


def test_matrices_are_those_of_the_numbers(checkpoint_of: Path) -> None:
    found, twin = Checkpoint.open(checkpoint_of), Checkpoint.open(checkpoint_of / "twin")
    program = load_program(json.loads((checkpoint_of / "config.json").read_text()))
    found.round_for(program)
    found.check_against(program)
    assert set(found.names) == set(twin.names)
    for name in (n for n in twin.names if len(twin.shape(n) or ()) > 1):
        np.testing.assert_array_equal(found.tensor(name), twin.tensor(name), err_msg=name)
        assert found.dtype(name) == "BF16"


def test_codes_are_the_matrices(checkpoint_of: Path) -> None:
    """They give the same bf16 numbers, those of the last blocks and groups, too."""
    checkpoint, name = Checkpoint.open(checkpoint_of), "model.layers.0.mlp.down_proj.weight"
    form = checkpoint.format(name)
    assert form is not None
    assert form.grouping is not None
    found, expected = checkpoint.codes(name, 5, 97), _unsigned(checkpoint.rows(name, 5, 97))
    np.testing.assert_array_equal(_unsigned(bf16_bits(found.values())), expected)
    padded = fitted(found.taken(np.arange(-4, 92)), form.grouping)
    decoded = from_panels(decode(encode(padded, form), form, 288))
    np.testing.assert_array_equal(_unsigned(decoded[4:]), expected)


def test_ranks_keep_their_columns_as_codes(checkpoint_of: Path) -> None:
    """Also where the cut goes through a group: 144 inputs of groups of 32."""
    checkpoint = Checkpoint.open(checkpoint_of)
    program = load_program(json.loads((checkpoint_of / "config.json").read_text()), dtype=DType.BF16)
    for rank in range(2):
        own = {w.name: w for w in rank_program(program, RankLayout(tp=2), rank).weights}
        for name, inputs in (("output", 64), ("down", 144)):
            weight = own[f"layers.1.{name}"]
            (piece,) = weight.pieces
            expected = _unsigned(read_piece(checkpoint, piece, range(5, 97)))
            assert expected.shape == (92, inputs)
            if checkpoint.codes(piece.tensor, 0, 1).book is Codebook.E4M3 and inputs == 144:
                assert coded_format(checkpoint, weight) is None  # no groups of sixteen
                continue
            assert coded_format(checkpoint, weight) is not None
            found = read_codes(checkpoint, piece, range(5, 97))
            np.testing.assert_array_equal(_unsigned(bf16_bits(found.values())), expected)


def _unsigned(words: np.ndarray) -> np.ndarray:
    """Zeros without their signs."""
    return np.where(words == 0x8000, 0, words)


def test_parts_are_parts_of_the_whole(checkpoint_of: Path) -> None:
    checkpoint, name = Checkpoint.open(checkpoint_of), "model.layers.1.mlp.down_proj.weight"
    whole = checkpoint.tensor(name)
    buffer = ReadBuffer(whole.nbytes)
    np.testing.assert_array_equal(checkpoint.rows(name, 3, 150), whole[3:150])
    for first, last in ((0, 5), (287, 290), (1000, 1000), (7, whole.size)):
        np.testing.assert_array_equal(checkpoint.elements(name, first, last), whole.reshape(-1)[first:last])
        found = checkpoint.elements(name, first, last, buffer)
        np.testing.assert_array_equal(found, whole.reshape(-1)[first:last])


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("fp8, blocks", CONFIG),
        ("fp8, blocks", toy_latent.deepseek_v3()),
        *((name, CONFIG) for name in ("awq", "gptq, 8 bits", "int4", "int4 with zero points", "int8, rows")),
        ("nvfp4, divided", CONFIG),
        ("mxfp4", CONFIG),
    ],
)
def test_same_answers_as_the_twin(name: str, config: Config, tmp_path: Path) -> None:
    """To the last bit of log-probabilities."""
    directory = write_quantized(name, tmp_path, config)
    first, second = answers_of(directory)
    assert (first.token_ids, first.logprobs) == (second.token_ids, second.logprobs)


def test_numbers_of_eight_bits_are_torchs() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(e4m3(), codes.view(torch.float8_e4m3fn).float().numpy())


@pytest.mark.parametrize("bits", [4, 8])
def test_words_are_those_of_the_formats_own_packer(bits: int) -> None:
    codes = np.random.default_rng(0).integers(-(1 << (bits - 1)), 1 << (bits - 1), (6, 50)).astype(np.int8)
    expected = pack_to_int32(torch.from_numpy(codes), bits).numpy()
    np.testing.assert_array_equal(words(codes.astype(np.int32) + (1 << (bits - 1)), bits), expected)


REFUSED: dict[str, tuple[Config, str]] = {
    "method": ({"quant_method": "bitsandbytes"}, "quant_method = 'bitsandbytes': supported"),
    "gptq form": ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
    "awq form": ({"quant_method": "awq", "version": "gemv"}, "version = 'gemv'"),
    "bits": ({"quant_method": "gptq", "bits": 3}, "bits = '3': supported: 4, 8"),
    "block": ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
    "sparse": (
        {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparsity_config.format",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_are_not_supported_are_refused_by_name(name: str, tmp_path: Path) -> None:
    settings, says = REFUSED[name]
    directory = make_checkpoint("qwen3", "bfloat16", tmp_path)
    (directory / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": settings}))
    with pytest.raises(UnsupportedModelError, match=says) as error:
        Checkpoint.open(directory)
    assert "\n" not in str(error.value)


def _broken(name: str, part: str, change: Any) -> Tensors:
    tensors, _ = FORMATS[name][0](np.random.default_rng(0).standard_normal((64, 128), np.float32))
    if change is None:
        del tensors[part]
    else:
        tensors[part] = (tensors[part][0], change(tensors[part][1]))
    return tensors


BROKEN: dict[str, tuple[str, str, Any, str]] = {
    "no scales": ("int4", "weight_scale", None, "weight_scale is missing"),
    "no shape": ("int4", "weight_shape", None, "weight_shape is missing"),
    "another shape": ("int4", "weight_shape", lambda v: v * 2, r"do not fit \[128, 256\]"),
    "scales of three groups": ("int4", "weight_scale", lambda v: v[:, :3], "do not fit"),
    "blocks too few": ("fp8, blocks", "weight_scale_inv", lambda _: np.ones((3, 1), np.float32), "3 scales"),
    "no zero points": ("awq", "qzeros", None, "qzeros is missing"),
    "zero points of fewer groups": ("gptq", "qzeros", lambda v: v[:1], "do not fit 128 inputs"),
    "a group that is not there": (
        "gptq",
        "g_idx",
        lambda v: v + 1,
        "g_idx: it does not name one",
    ),
    "an order of other inputs": ("gptq", "g_idx", lambda v: v[:-1], "g_idx: it does not name .* 128 inputs"),
    "scales of floats": ("mxfp4", "weight_scale", lambda v: v[:, :1][:5], "do not fit"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_parts_that_do_not_fit_are_refused_in_a_line(name: str, tmp_path: Path) -> None:
    form, part, change, says = BROKEN[name]
    tensors = {f"model.layers.0.mlp.up_proj.{key}": v for key, v in _broken(form, part, change).items()}
    write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": FORMATS[form][1]}))
    with pytest.raises(CheckpointError, match=says) as error:
        Checkpoint.open(tmp_path).tensor("model.layers.0.mlp.up_proj.weight")
    assert "\n" not in str(error.value)


def test_a_config_without_a_quantised_tensor_is_refused(tmp_path: Path) -> None:
    directory = make_checkpoint("qwen3", "bfloat16", tmp_path)
    config = CONFIG | {"quantization_config": {"quant_method": "fp8"}}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"quantization_config \(fp8\), but no tensor is quantised"):
        Checkpoint.open(directory)


def test_experts_in_blocks_are_those_of_the_transposed_tensor(tmp_path: Path) -> None:
    """gpt-oss: four-bit floats [experts, n, groups, 16] stand for the tensor [experts, k, n]."""
    from tests.weights.quantized.quantized_writers import mxfp4

    values = np.random.default_rng(3).standard_normal((3, 40, 64), np.float32)
    written = [mxfp4(matrix) for matrix in values]
    codes = np.stack([tensors["weight_packed"][1] for tensors, _ in written]).reshape(3, 40, 2, 16)
    scales = np.stack([tensors["weight_scale"][1] for tensors, _ in written])
    name = "model.layers.0.mlp.experts.down_proj"
    write_tensors(
        tmp_path / "model.safetensors",
        {f"{name}_blocks": ("U8", codes), f"{name}_scales": ("U8", scales)},
    )
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mxfp4"}}))
    checkpoint = Checkpoint.open(tmp_path)
    expected = to_bf16(np.stack([numbers.T for _, numbers in written]))
    np.testing.assert_array_equal(checkpoint.tensor(name), expected)
    np.testing.assert_array_equal(checkpoint.elements(name, 2500, 5200), expected.reshape(-1)[2500:5200])


def test_writers_come_near_the_numbers() -> None:
    values = np.random.default_rng(4).standard_normal((128, 256), np.float32)
    for name, (writer, _) in FORMATS.items():
        assert np.abs(writer(values)[1] - values).mean() < 0.2, name
    assert not np.array_equal(packed(values)[1], packed(values, zeros=True)[1])
    assert np.array_equal(gptq(values)[1], gptq(values, version=2)[1])
