"""Quantised checkpoints keep their codes on the device; a model's bytes are those of its bf16 twin, and the
kernels that are compiled ahead are those that run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firelane.backends.cuda import loader
from firelane.backends.cuda.kernels.matmul.quantised import decode_matrix
from firelane.backends.cuda.loading.loading import load_weights, planned_bytes
from firelane.backends.cuda.loading.packing import MatrixPacker
from firelane.backends.cuda.weights import coded_reference
from firelane.backends.cuda.weights.matrices import FP4, PlainMatrix, QuantisedForm, QuantisedMatrix
from firelane.backends.cuda.weights.placement import Placement
from firelane.backends.cuda.weights.quantised_weights import Stored, arrays_of, numbers_of, stored_weights
from firelane.contract import SAMPLE, SCORE
from firelane.engine_config import ExecutorConfig
from firelane.errors import CheckpointError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.formats.codebooks import E2M1_VALUES, Codebook
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import Grouping
from firelane.weights.formats.grouped import fitted as codes_fitted
from firelane.weights.gguf.blocks import FORMATS as GGUF_FORMATS
from firelane.weights.gguf.blocks import decode
from firelane.weights.gguf.header import TYPES
from firelane.weights.quantizing.schemes import WHILE_PACKING
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean
from tests.backends.cuda.matrices_harness import bf16, bits_of, escapes_of, padded
from tests.backends.executor_contract import Batch
from tests.models import toy_dense
from tests.weights.files import to_bf16
from tests.weights.quantized.test_gpt_oss import write as write_gpt_oss
from tests.weights.quantized.test_quantized import write_quantized

CONFIG = toy_dense.qwen3() | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}
UNITS_AT = {"Q4_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82)}
BLOCK_BYTES = {type_.name: type_.nbytes for type_ in TYPES.values()}
FORMATS = (
    "int4", "int4 with zero points", "int8, rows", "awq", "gptq, 8 bits",
    "fp8, blocks", "nvfp4, divided", "mxfp4",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


@pytest.fixture(scope="module", params=FORMATS)
def checkpoint_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_quantized(request.param, tmp_path_factory.mktemp("quantised"), CONFIG)


def opened(directory: Path) -> tuple[Program, Checkpoint]:
    checkpoint = Checkpoint.open(directory)
    return fitted(load_program(read_config(directory)), checkpoint), checkpoint


def test_codes_are_kept_and_stand_for_the_twins_weights(checkpoint_of: Path) -> None:
    program, checkpoint = opened(checkpoint_of)
    stored = stored_weights(program, checkpoint, "auto")
    loaded = load_weights(program, checkpoint, HostDevice(), stored=stored, threads=2)
    twin = load_weights(*opened(checkpoint_of / "twin"), HostDevice(), mode="bf16", threads=2)
    assert len(stored) == 4  # qkv, o, gate and up, down
    assert {n for n, m in loaded.matrices.items() if isinstance(m, QuantisedMatrix)} == set(stored)
    for name, kept in stored.items():
        matrix, plain = loaded.matrices[name], twin.matrices[name]
        assert isinstance(matrix, QuantisedMatrix)
        assert isinstance(plain, PlainMatrix)
        assert form_of(matrix) == kept.form
        assert_same(matrix, plain)
    assert loaded.nbytes <= planned_bytes(program, "auto", stored)
    assert loaded.nbytes < twin.nbytes


def form_of(matrix: QuantisedMatrix) -> QuantisedForm:
    return QuantisedForm(
        numbers=matrix.numbers,
        group_size=matrix.group_size,
        scales=matrix.scales.dtype,
        minima=None if matrix.minima is None else matrix.minima.dtype,
        bounds=matrix.bounds is not None,
    )


def assert_same(matrix: QuantisedMatrix, plain: PlainMatrix) -> None:
    """Zeros of either sign are alike."""
    assert torch.equal(matrix.escapes.starts, plain.escapes.starts)
    count = int(matrix.escapes.starts[-1])
    for part in ("where", "values"):
        assert torch.equal(getattr(matrix.escapes, part)[:count], getattr(plain.escapes, part)[:count])
    launch, found = decode_matrix(matrix, torch.empty_like(plain.data))
    launch.run()
    bits, true = bits_of(found.data), bits_of(plain.data)
    np.testing.assert_array_equal(bits[true & 0x7FFF != 0], true[true & 0x7FFF != 0])
    assert not (bits[true & 0x7FFF == 0] & 0x7FFF).any()


@pytest.mark.parametrize("kind", UNITS_AT)
def test_scales_of_two_levels(kind: str) -> None:
    """Scales of two levels in GGUF's larger blocks are loaded with padding rows."""
    rows, k, grouping = 70, 768, GGUF_FORMATS[kind].grouping
    assert grouping is not None
    codes = codes_fitted(decode(kind, gguf_blocks(kind, rows * k // 256)).joined(rows), grouping)
    form = QuantisedForm(
        numbers=numbers_of(grouping), group_size=grouping.group, scales=torch.int8, minima=None, bounds=False
    )
    stored = Stored(grouping=grouping, form=form)
    weight = Weight.stored("w", (rows, k), DType.BF16)
    place = Placement(
        weight=weight, padded_rows=128, padded_k=k, may_split=True, to_coded=False, stored=stored
    )
    packer = MatrixPacker(HostDevice(), (place,))
    arrays = packer.place_codes(place, stored)
    for target, part in zip(arrays, arrays_of(codes, stored, k), strict=True):
        target[:rows].copy_(torch.from_numpy(part))
    matrix = packer.pack_codes(place, arrays)
    assert matrix.scales.dtype == torch.int8
    split = coded_reference.split(padded([to_bf16(codes.values())]))
    assert split is not None
    assert_same(matrix, PlainMatrix(data=bf16(split.bits), rows=rows, k=k, escapes=escapes_of(split)))
    assert (matrix.bounds is not None) == (grouping.minima and len(split.where) > 0)


@pytest.mark.parametrize("book", [Codebook.E4M3, Codebook.E2M1], ids=lambda book: book.value)
def test_scales_too_large_for_the_decode_in_registers(book: Codebook) -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 120, (64, 128)).astype(np.int8)
    codes = codes if book is Codebook.E4M3 else E2M1_VALUES[codes & 15]
    rows = Codes(codes, np.full((64, 4), 2.5e2, np.float32), book=book)
    rows.scales[3, 1] = 1e5
    grouping = Grouping(8 if book is Codebook.E4M3 else 4, 32, minima=False, book=book)
    form = QuantisedForm(
        numbers=numbers_of(grouping), group_size=32, scales=torch.float32, minima=None, bounds=False
    )
    stored = Stored(grouping=grouping, form=form)
    weight = Weight.stored("w", (64, 128), DType.BF16)
    place = Placement(
        weight=weight, padded_rows=64, padded_k=128, may_split=False, to_coded=False, stored=stored
    )
    packer = MatrixPacker(HostDevice(), (place,))
    arrays = packer.place_codes(place, stored)
    for target, part in zip(arrays, arrays_of(rows, stored, 128), strict=True):
        target.copy_(torch.from_numpy(part))
    matrix = packer.pack_codes(place, arrays)
    assert isinstance(matrix, PlainMatrix)
    np.testing.assert_array_equal(bits_of(matrix.data) & 0x7FFF, to_bf16(rows.values()) & 0x7FFF)


def test_experts_of_gpt_oss_keep_their_codes(tmp_path: Path) -> None:
    """In MXFP4, transposed, and gate and up by turns; with inputs that fill no tile."""
    directory = write_gpt_oss(tmp_path)
    program, checkpoint = opened(directory)
    stored = stored_weights(program, checkpoint, "auto")
    assert {w.name for w in program.weights if w.layout.by_expert and w.k > 1} == set(stored)
    loaded = load_weights(program, checkpoint, HostDevice(), stored=stored, threads=2)
    twin = load_weights(*opened(directory / "twin"), HostDevice(), mode="bf16", threads=2)
    for name, kept in stored.items():
        matrix, plain = loaded.matrices[name], twin.matrices[name]
        assert isinstance(matrix, QuantisedMatrix)
        assert isinstance(plain, PlainMatrix)
        assert (matrix.numbers, form_of(matrix)) == (FP4, kept.form)
        assert_same(matrix, plain)


def test_a_code_that_is_no_number_is_refused(tmp_path: Path) -> None:
    directory = write_quantized("fp8, rows", tmp_path, CONFIG)
    program, checkpoint = opened(directory)
    stored = stored_weights(program, checkpoint, "auto")
    name = "model.layers.0.mlp.down_proj.weight"
    file = directory / "model.safetensors"
    data = bytearray(file.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    at = 8 + int.from_bytes(data[:8], "little") + header[name]["data_offsets"][0]
    data[at + 1000] = 0xFF
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"tensor {name} holds NaN"):
        load_weights(program, checkpoint, HostDevice(), stored=stored, threads=2)


def gguf_blocks(kind: str, count: int) -> np.ndarray:
    """Random ones, whose float16 numbers are all of about one size."""
    rng = np.random.default_rng(8)
    blocks = rng.integers(0, 256, (count, BLOCK_BYTES[kind])).astype(np.uint8)
    for at in UNITS_AT[kind]:
        units = (0.004 + 0.004 * rng.random(count)).astype(np.float16)
        blocks[:, at : at + 2] = units.view(np.uint8).reshape(-1, 2)
    return blocks


def test_bf16_keeps_no_codes(checkpoint_of: Path) -> None:
    assert not stored_weights(*opened(checkpoint_of), "bf16")


def test_weights_that_are_quantised_while_they_are_read_keep_their_codes(tmp_path: Path) -> None:
    directory = write_quantized("int4", tmp_path, CONFIG) / "twin"
    checkpoint, program = Checkpoint.open(directory), load_program(read_config(directory))
    program = fitted(program, checkpoint, quantize=WHILE_PACKING["int4"])
    stored = stored_weights(program, checkpoint, "int4")
    loaded = load_weights(program, checkpoint, HostDevice(), mode="int4", stored=stored, threads=2)
    plain = load_weights(program, checkpoint, HostDevice(), mode="bf16", threads=2)
    assert len(stored) == 5  # qkv, o, gate and up, down, and the head
    for name in stored:
        matrix, same = loaded.matrices[name], plain.matrices[name]
        assert isinstance(matrix, QuantisedMatrix)
        assert isinstance(same, PlainMatrix)
        assert_same(matrix, same)


def test_a_model_gives_the_bytes_of_its_twin(tmp_path: Path) -> None:
    directory = write_quantized("awq", tmp_path, CONFIG)
    tokens = np.random.default_rng(5).integers(0, 90, 20).tolist()
    found = [scores(path, tokens) for path in (directory, directory / "twin")]
    np.testing.assert_array_equal(found[0], found[1])


def scores(directory: Path, tokens: list[int]) -> np.ndarray:
    """Log-probabilities of a prompt in two parts, and of a decoded token."""
    batch = Batch(load(directory))
    batch.install(1, tokens, temperature=0.0, logprobs=1)
    first = batch.step((1, 0, 17, dict.fromkeys(range(17), SCORE))).logprobs[:17].copy()
    last = len(tokens) - 1
    rest = batch.step((1, 17, last - 16, {p: SCORE for p in range(17, last)} | {last: SAMPLE}))
    return np.concatenate([first, rest.logprobs[: last - 16]])


def load(directory: Path) -> Any:
    sizes = {"max_num_seqs": 2, "max_num_batched_tokens": 17, "max_model_len": 64, "block_size": 16}
    config = ExecutorConfig(cache_dir=Path("/nowhere"), threads=2, **sizes)
    device = HostDevice(warm=False, memory_bytes=2 << 30)
    return loader.load_on(device, *opened(directory), config, lambda *_: None)
