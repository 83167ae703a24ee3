"""A node of two gateway processes: models come to memory whichever process is asked for them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e_support import TIMEOUT_S, wait_until

from firelane.bench.server import ServerProcess

CONNECTIONS = 12
NODE = """
[server]
gateways = 2
[engine]
backend = "null"
max_num_seqs = 8
kv_cache_gib = 0.02
[models.first]
load = "start"
[models.second]
idle_s = 600
"""
THIRD = """
[models.third]
aliases = ["other"]
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("node") / "node.toml"
    path.write_text(NODE)
    return path


@pytest.fixture(scope="module")
def server(environ: dict[str, str], config: Path) -> Iterator[ServerProcess]:
    with ServerProcess([str(config)], command="node", environ=environ) as made:
        yield made


def ask(server: ServerProcess, model: str, **headers: str) -> list[int]:
    """Statuses of the same request over many connections."""
    body = {"model": model, "prompt": [50, 51], "max_tokens": 4, "ignore_eos": True}
    url = f"{server.url}/v1/completions"
    return [
        httpx.post(url, json=body, headers=headers, timeout=TIMEOUT_S, verify=False).status_code
        for _ in range(CONNECTIONS)
    ]


def state(server: ServerProcess, model: str) -> str:
    report = httpx.get(f"{server.url}/admin/models", timeout=TIMEOUT_S, verify=False).json()
    (found,) = [one["state"] for one in report["models"] if one["name"] == model]
    return found


def test_a_model_comes_and_goes_for_all_whoever_is_asked(server: ServerProcess) -> None:
    for _ in range(2):
        put_away = httpx.post(f"{server.url}/admin/models/sleep", json={"model": "second"}, timeout=TIMEOUT_S)
        assert put_away.status_code == 200
        assert state(server, "second") != "ready"
        wait_until(lambda: set(ask(server, "second", **{"x-firelane-reject-if-cold": "1"})) == {503})
        assert set(ask(server, "second")) == {200}
        assert state(server, "second") == "ready"
    assert {"1", "2"} <= set(re.findall(r"gateway=(\d) request_ended", server.log))


def test_a_new_file_counts_for_all(server: ServerProcess, config: Path) -> None:
    assert set(ask(server, "other")) == {404}
    config.write_text(NODE + THIRD)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reload_complete models=3" in server.log)
    wait_until(lambda: set(ask(server, "other")) == {200})
    config.write_text(NODE)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "reload_complete models=2" in server.log)
    wait_until(lambda: set(ask(server, "third")) == {404})
    assert set(ask(server, "first")) == {200}


def test_an_engine_that_dies_is_there_again_for_all(server: ServerProcess) -> None:
    for pid in server.engine_pids:
        os.kill(pid, signal.SIGKILL)
    assert set(ask(server, "first")) == {200}
    assert set(ask(server, "second")) == {200}
