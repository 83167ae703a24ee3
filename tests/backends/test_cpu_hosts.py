"""A model by ranks of two hosts, which are processes of this machine here: the bits of one rank, and what
becomes of hosts that differ, never come, or go."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from firelane import env
from firelane.backends import cpu
from firelane.contract import Executor
from firelane.engine_config import EngineConfig, HostsConfig
from firelane.errors import MachineError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from tests.backends.test_cpu_ranks import DTYPE, FAMILY, HAS_CORES, load, run, run_for_ever, serve
from tests.models.families import make_checkpoint

SECRET = "a secret of this group alone"
GROUP_ENDED = 75
pytestmark = pytest.mark.skipif(not HAS_CORES, reason="ranks need a core each")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(FAMILY, DTYPE, tmp_path_factory.mktemp("hosts"))


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRELANE_CLUSTER_KEY", SECRET)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def config_of(
    directory: Path, cache_dir: Path, *, own: int = 0, port: int, **options: object
) -> EngineConfig:
    sizes = options or {"tensor_parallel_size": 2}
    count = sizes.pop("hosts", 2)
    return EngineConfig(
        model_dir=directory,
        cache_dir=cache_dir,
        backend="cpu",
        max_num_seqs=4,
        max_num_batched_tokens=64,
        kv_cache_bytes=16 << 20,
        hosts=HostsConfig(count=count, own=own, address="127.0.0.1", port=port, timeout_s=60.0),
        **sizes,
    )


def start(config: EngineConfig, own: int = 1) -> subprocess.Popen[str]:
    """The process of another host."""
    config = msgspec.structs.replace(config, hosts=msgspec.structs.replace(config.hosts, own=own))
    command = [sys.executable, "-m", "firelane.engine.process.headless", config.to_json()]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env.for_child())


def lead(config: EngineConfig) -> Executor:
    return cpu.load(load_program(read_config(config.model_dir)), config.model_dir, config, lambda *_: None)


@contextmanager
def group(config: EngineConfig) -> Iterator[Executor]:
    others = [start(config, own) for own in range(1, config.hosts.count)]
    try:
        executor = lead(config)
        try:
            yield executor
        finally:
            executor.release()
        assert [other.wait(120) for other in others] == [GROUP_ENDED] * len(others)
    finally:
        for other in others:
            other.kill()
            other.communicate()


@pytest.fixture(scope="module")
def alone(checkpoint: Path, kernel_cache: Path) -> tuple[list[bytes], list[list[int]]]:
    executor = load(checkpoint, kernel_cache)
    try:
        return run(executor), serve(executor)
    finally:
        executor.release()


@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"hosts": 4, "tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    ],
    ids=str,
)
def test_the_bits_of_one_rank(checkpoint: Path, kernel_cache: Path, alone, sizes: dict[str, int]) -> None:
    with group(config_of(checkpoint, kernel_cache, port=free_port(), **sizes)) as executor:
        assert run(executor) == alone[0]
        assert serve(executor) == alone[1]


def test_a_host_that_is_killed_ends_the_group(checkpoint: Path, kernel_cache: Path) -> None:
    config = config_of(checkpoint, kernel_cache, port=free_port())
    other = start(config)
    try:
        executor = lead(config)
        run(executor)
        other.send_signal(signal.SIGKILL)
        with pytest.raises(MachineError, match=r"host 1 \(rank 1 of the model\) is gone"):
            run_for_ever(executor)
        executor.release()
    finally:
        other.kill()
        other.communicate()
