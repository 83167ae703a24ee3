"""Pages and recurrent states of engines on a device that leave it and come back, every kernel in the
interpreter: tiers, and a prefill engine that hands over to a decode engine, with the tokens of one engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from firelane.backends.cuda import loader
from firelane.engine.pages import page_waits, tier_reads
from firelane.engine.process.standby import EngineStandby
from firelane.engine.process.tiers import open_tiers
from firelane.engine_config import ExecutorConfig, TiersConfig
from firelane.kv import SnapshotRule
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.late_device import LateDevice
from tests.backends.cuda.lean import lean
from tests.engine.driver import Driver, make_request
from tests.engine.handed_over import HandedOver, connected
from tests.models.families import make_checkpoint

SIZES = {"max_num_seqs": 2, "max_num_batched_tokens": 40, "max_model_len": 64, "block_size": 16}
RULE = SnapshotRule(interval=16, at_least=16)
PROMPT = range(10, 47)
FAMILIES = {
    "llama3": {"num_hidden_layers": 1},
    "lfm2": {"num_hidden_layers": 2, "full_attn_idxs": [1]},
}


@pytest.fixture(autouse=True, scope="module")
def _lean() -> Iterator[None]:
    with lean():
        yield


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough on however slow a machine."""
    monkeypatch.setattr(tier_reads, "UNKNOWN_S", 60.0)
    for name in ("LEAST_S", "MOST_S", "UNKNOWN_S"):
        monkeypatch.setattr(page_waits, name, 60.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {n: make_checkpoint(n, "bfloat16", root / n, **changes) for n, changes in FAMILIES.items()}


def engine(model_dir: Path, device: HostDevice | None = None) -> Driver:
    config = ExecutorConfig(cache_dir=Path("/nowhere"), kv_cache_bytes=1 << 20, **SIZES)
    program, checkpoint = load_program(read_config(model_dir)), Checkpoint.open(model_dir)
    on = device or HostDevice(warm=False, memory_bytes=2 << 30)
    return Driver(loader.load_on(on, program, checkpoint, config, lambda *_: None), snapshots=RULE)


@pytest.fixture(scope="module")
def alone(models: dict[str, Path]) -> dict[str, list[int]]:
    return {name: tokens(engine(directory), 1) for name, directory in models.items()}


def tokens(d: Driver | HandedOver, request: int, count: int = 3) -> list[int]:
    d.submit(make_request(request, PROMPT, max_tokens=count, seed=3))
    d.run()
    return d.tokens[request]


def scribble(d: Driver) -> None:
    """Over all that a prompt could begin with."""
    d.core.kv.forget()
    for memory in (d.executor.page_memory, d.executor.state_memory):
        if memory is not None:
            pages = list(range(memory.num_pages))
            assert memory.write(pages, np.full((len(pages), memory.page_bytes), 0x7F, np.uint8))


def test_tokens_behind_pages_and_a_snapshot_of_a_tier(models, alone) -> None:
    d, want, config = engine(models["lfm2"]), alone["lfm2"], TiersConfig(host_bytes=1 << 22)
    tiers = open_tiers(config, d.core, d.executor.page_memory, d.executor.state_memory, "m")
    try:
        assert tokens(d, 1) == want
        tiers.settle()
        scribble(d)
        assert tokens(d, 2) == want
        assert (d.cached[1], d.cached[2]) == (0, 32)
        assert d.frames[-1].stats.host_hits > 2
    finally:
        tiers.close()


def test_tokens_behind_pages_of_a_drive_after_standby(models, alone, tmp_path: Path) -> None:
    """The device's memory, and what is in host memory, has gone meanwhile; what lies on the drive has not."""
    d, want = engine(models["llama3"]), alone["llama3"]
    config = TiersConfig(host_bytes=1 << 22, disk=tmp_path, disk_bytes=1 << 22)
    pages, states = d.executor.page_memory, d.executor.state_memory
    tiers = open_tiers(config, d.core, pages, states, "m")
    try:
        assert tokens(d, 1) == want
        tiers.settle()
        standby = EngineStandby(d.executor, d.core.kv, tiers)
        standby.sleep()
        buffer = pages.buffer(1)
        assert not pages.read([0], buffer)
        assert not pages.write([0], buffer)
        standby.wake()
        assert pages.read([0], buffer)
        assert tokens(d, 2) == want
        assert d.cached[2] == 32
        assert d.frames[-1].stats.disk_hits >= 2
    finally:
        tiers.close()


@pytest.mark.parametrize(("family", "late"), [("llama3", False), ("lfm2", True)])
def test_an_engine_goes_on_with_pages_of_another(models, alone, family: str, *, late: bool) -> None:
    """late: the device runs what was started as late as it may, steps and copies."""
    source, reader = (engine(models[family], LateDevice() if late else None) for _ in range(2))
    scribble(reader)
    with connected(source, reader) as (transfer, there):
        both = HandedOver(source, reader, transfer.engine_id)
        assert tokens(both, 1) == alone[family]
        assert there.transport(transfer.engine_id) == "tcp"
        assert (both.handed_over, reader.cached[1]) == (1, 32)
        assert reader.frames[-1].stats.pulls_ok == 1


def test_engines_of_equal_layout_say_so(models) -> None:
    one, same, other = (engine(models[name]).executor for name in ("lfm2", "lfm2", "llama3"))
    assert other.state_memory is None
    assert one.state_memory.layout_id == same.state_memory.layout_id
    assert one.page_memory.layout_id == same.page_memory.layout_id != other.page_memory.layout_id
    assert one.page_memory.page_bytes * one.limits.num_blocks == one.memory.pages.pool.nbytes
    assert one.state_memory.page_bytes == one.limits.state_bytes
