"""Signals, a dying engine, a busy port. An engine that is stopped (SIGSTOP) keeps requests in flight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from e2e_support import RawRequest, is_running, metric, status, wait_until

from firelane.bench.server import ServerProcess


@pytest.fixture
def server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    with ServerProcess(["--backend", "null"], environ=environ) as started:
        yield started


def one_in_flight(server: ServerProcess) -> RawRequest:
    """A request that the engine, stopped, cannot answer."""
    os.kill(server.engine_pids[0], signal.SIGSTOP)
    return RawRequest(server.url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_ends_cleanly(server: ServerProcess, number: signal.Signals) -> None:
    engines = server.engine_pids
    server.process.send_signal(number)
    assert server.process.wait(60) == 0
    assert all(not is_running(pid) for pid in engines)
    assert "Traceback" not in server.log


def test_drain_lets_a_request_finish(server: ServerProcess) -> None:
    engine = server.engine_pids[0]
    request = one_in_flight(server)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: status(server.url) != 200)
    os.kill(engine, signal.SIGCONT)
    assert request.result()[0] == 200
    assert server.process.wait(60) == 0


def test_second_signal_ends_at_once(server: ServerProcess) -> None:
    request = one_in_flight(server)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: status(server.url) != 200)
    server.process.send_signal(signal.SIGTERM)
    assert request.result()[0] == 503
    assert server.process.wait(60) == 0


def test_killed_engine_is_reported_and_replaced(server: ServerProcess) -> None:
    (engine,) = server.engine_pids
    request = one_in_flight(server)
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: "SIGKILL" in server.log)
    assert request.result()[0] == 200
    assert status(server.url) == 200
    assert server.engine_pids != [engine]
    assert RawRequest(server.url).result()[0] == 200


def test_an_idle_engine_that_is_stopped_is_replaced(server: ServerProcess) -> None:
    """And so is the next one, while it loads."""
    (engine,) = server.engine_pids
    os.kill(engine, signal.SIGSTOP)
    wait_until(lambda: status(server.url) == 503)
    wait_until(lambda: server.engine_pids not in ([], [engine]))
    (loading,) = server.engine_pids
    os.kill(loading, signal.SIGSTOP)
    wait_until(lambda: status(server.url) == 200)
    assert server.engine_pids not in ([engine], [loading])
    assert metric(server.url, "firelane:engine_deaths_total") == 2
    assert RawRequest(server.url).result()[0] == 200


def test_engine_ends_with_its_gateway(server: ServerProcess) -> None:
    (engine,) = server.engine_pids
    server.process.kill()
    server.process.wait(60)
    wait_until(lambda: not is_running(engine))


def test_busy_port(server: ServerProcess, environ: dict[str, str]) -> None:
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "firelane", "serve", "--backend", "null", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("firelane: error: ")]
    assert errors == [done.stderr.splitlines()[-1]]
    assert f"127.0.0.1:{port}" in errors[0]
    assert "Traceback" not in done.stderr
