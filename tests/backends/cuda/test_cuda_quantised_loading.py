"""Quantised checkpoints keep their codes on the device; a model's bytes are those of its bf16 twin, and the
kernels that are compiled ahead are those that run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firelane.backends.cuda import loader
from firelane.backends.cuda.kernels.quantised import decode_matrix
from firelane.backends.cuda.loading import load_weights, planned_bytes
from firelane.backends.cuda.matrices import PlainMatrix, QuantisedForm, QuantisedMatrix
from firelane.backends.cuda.quantised_weights import stored_weights
from firelane.contract import SAMPLE, SCORE
from firelane.engine_config import ExecutorConfig
from firelane.models.config import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.weights.checkpoint import Checkpoint
from firelane.weights.fitting import fitted
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean
from tests.backends.cuda.matrices_harness import bits_of
from tests.backends.executor_contract import Batch
from tests.models import toy_dense
from tests.weights.quantized.test_quantized import write_quantized

CONFIG = toy_dense.qwen3() | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}
FORMATS = ("int4", "int4 with zero points", "int8, rows", "awq", "gptq, 8 bits")


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


def test_bf16_keeps_no_codes(checkpoint_of: Path) -> None:
    assert not stored_weights(*opened(checkpoint_of), "bf16")


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
