"""Loading a checkpoint on a device of the host's memory: the whole way but the GPU itself. What comes out
keeps the contract of every executor."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from firelane.backends.cuda import assembly, loader
from firelane.backends.cuda.lowering.compilation import specialisation
from firelane.backends.cuda.lowering.memory import RESERVE_BYTES
from firelane.contract import EMBED
from firelane.engine_config import ExecutorConfig
from firelane.errors import CheckpointError, CompilerError, OutOfMemoryError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean
from tests.backends.executor_contract import LIMITS, Batch, ExecutorContract
from tests.models.families import make_checkpoint

GIB = 1 << 30


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "llama3"
    return make_checkpoint("llama3", "bfloat16", directory, num_hidden_layers=1)


def config_of(**changes) -> ExecutorConfig:
    sizes = {k: v for k, v in LIMITS.items() if k not in ("max_output_rows", "num_blocks")}
    return ExecutorConfig(cache_dir=Path("/nowhere"), threads=2, **(sizes | changes))


def load(model_dir: Path, *, device: HostDevice | None = None, progress=lambda *_: None, **changes):
    program = load_program(read_config(model_dir))
    device = device or HostDevice(memory_bytes=2 * GIB, warm=False)
    return loader.load_on(device, program, Checkpoint.open(model_dir), config_of(**changes), progress)


@pytest.fixture(autouse=True, scope="module")
def _lean():
    with lean():
        yield


class TestCuda(ExecutorContract):
    releases = 2

    @pytest.fixture(autouse=True)
    def _model(self, model_dir):
        self.model_dir = model_dir

    def make_executor(self, **sizes):
        sizes = {k: v for k, v in sizes.items() if k not in ("max_output_rows", "num_blocks")}
        return load(self.model_dir, **sizes)


def test_says_how_far_it_is_and_what_memory_it_took(model_dir, caplog):
    caplog.set_level(logging.DEBUG, logger=loader.__name__)
    stages: list[tuple[str, float, float]] = []
    executor = load(model_dir, progress=lambda stage, done, total, _: stages.append((stage, done, total)))
    assert {stage for stage, _, _ in stages} == {"compile", "load", "capture"}
    assert stages[-1][1] == stages[-1][2]
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "device memory planned: of 2.00 GiB" in said
    assert "device memory used" in said
    assert executor.weights_bytes > 100_000


def test_the_kv_cache_takes_what_is_left(model_dir):
    device = HostDevice(memory_bytes=RESERVE_BYTES + (64 << 20), warm=False)
    executor = load(model_dir, device=device, max_num_seqs=30, max_num_batched_tokens=64)
    assert executor.limits.num_blocks == -(-LIMITS["max_model_len"] // 16) * 30  # more than all can use
    assert device.free_bytes() >= RESERVE_BYTES
    small = load(model_dir, kv_cache_bytes=200 << 10)
    assert 4 <= small.limits.num_blocks < executor.limits.num_blocks
    assert small.kv_bytes <= 200 << 10


def test_too_little_memory_is_said_with_figures(model_dir):
    with pytest.raises(OutOfMemoryError, match=r"the device has 0\.8 GiB free; the weights need 0\.0 GiB"):
        load(model_dir, device=HostDevice(memory_bytes=RESERVE_BYTES))
    with pytest.raises(OutOfMemoryError, match=r"KV cache has room for .* one sequence of 64"):
        load(model_dir, kv_cache_bytes=1 << 11)
    roomy = HostDevice(memory_bytes=2 * GIB, warm=False)
    taken = 2 * GIB - load(model_dir, device=roomy).kv_bytes - roomy.free_bytes()
    tight = HostDevice(memory_bytes=RESERVE_BYTES + taken + (32 << 10), warm=False)
    with pytest.raises(OutOfMemoryError, match=r"--kv-cache-gib 2\.00: .* lower it"):
        load(model_dir, device=tight, kv_cache_bytes=2 * GIB)


def test_the_librarys_products_agree_but_for_rounding(model_dir):
    sizes = {"max_num_batched_tokens": 160, "max_model_len": 160}
    hidden = []
    for gemm in ("invariant", "library"):
        batch = Batch(load(model_dir, gemm=gemm, weights="bf16", **sizes))
        batch.install(0, [7] * 140)
        hidden.append(batch.step((0, 0, 140, {139: EMBED})).hidden[0].copy())
    assert np.abs(hidden[0] - hidden[1]).max() < 0.05 < np.abs(hidden[0]).max()


def test_a_long_model_is_cut_to_what_fits(model_dir):
    executor = load(model_dir, max_model_len=None, kv_cache_bytes=16 << 10)
    assert executor.limits.max_model_len == executor.limits.num_blocks * 16 < 256


def test_a_kernel_that_does_not_compile_ends_the_loading(model_dir, monkeypatch):
    class Broken:
        name = "broken_kernel"

        def compile(self):
            raise CompilerError("broken_kernel does not compile")

    monkeypatch.setattr(loader, "work_ahead", lambda _: [Broken()])
    with pytest.raises(CompilerError, match="broken_kernel"):
        load(model_dir)


def test_damaged_weights_are_said(model_dir, tmp_path):
    for file in model_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-2:] = b"\x80\x7f"  # infinite
    (tmp_path / "model.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        load(tmp_path)


def test_what_is_compiled_ahead_is_what_is_launched(model_dir, monkeypatch):
    """Placeholder weights lead to the same kernels, with the same constants, as the real weights."""
    ahead: set = set()
    monkeypatch.setattr(loader, "compile_all", lambda work, **_: ahead.update(map(specialisation, work)))
    launched: set = set()
    lower_all = assembly.lower_all

    def lower(*args, **named):
        work = lower_all(*args, **named)
        launched.update(specialisation(w) for every in work.values() for w in every)
        return work

    monkeypatch.setattr(assembly, "lower_all", lower)
    load(model_dir)
    assert launched
    assert launched <= ahead


def test_batches_of_the_contract_run_in_every_bucket(model_dir):
    """One step of each kind through graphs that have run before, as on a GPU."""
    executor = load(model_dir, device=HostDevice(memory_bytes=2 * GIB, warm=True))
    batch = Batch(executor)
    assert batch.generate(0, [5, 6, 7], 2) == batch.generate(1, [5, 6, 7], 2)
