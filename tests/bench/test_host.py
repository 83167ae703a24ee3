"""The host benchmark against a real server on the null backend; and what it reads from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firelane.bench.host import HostLoad, measure_host, read_vocabulary
from firelane.bench.server import ServerProcess, cpu_seconds, descendants
from firelane.errors import MachineError
from firelane.sources.resolve import EMBEDDED

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def test_cost_of_a_small_load() -> None:
    load = HostLoad(streams=8, num_requests=30, seed=0)
    with ServerProcess(["--backend", "null"]) as server:
        cost = measure_host(server, load, read_vocabulary(EMBEDDED))
        assert len(server.engine_pids) == 1
    assert cost.output_tokens > 1000
    assert cost.prompt_tokens > 1000
    assert 0 < cost.total_us < 5000
    assert cost.total_us == cost.gateway_us + cost.engine_us
    assert server.process.returncode == 0


def test_a_server_that_fails_is_told() -> None:
    with pytest.raises(MachineError, match="no such directory"):
        ServerProcess(["/no/such/model"])


def test_descendants_are_found() -> None:
    script = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'input()'])\n"
        "print(p.pid)\n"
        "p.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-uc", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert descendants(parent.pid) == [child]
        assert {parent.pid, child} <= set(descendants(os.getpid()))


def test_cpu_time_grows_with_work_and_is_0_for_no_process() -> None:
    before = cpu_seconds(os.getpid())
    sum(range(3_000_000))
    assert cpu_seconds(os.getpid()) > before
    assert cpu_seconds(2**22 + 1) == 0.0
