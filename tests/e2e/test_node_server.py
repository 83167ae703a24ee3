"""A node on the null backend: models come and go, its engines and itself are killed at every state, its file
is read again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from firelane.bench.server import ServerProcess

PATIENCE_S = 60.0
FILE = """
[node]
budget_gib = 0.1
min_residence_s = 0.0
retry_s = 0.1
[engine]
backend = "null"
max_num_seqs = 2
kv_cache_gib = 0.05
[models.a]
aliases = ["x"]
[models.b]
max_num_seqs = 3
"""


class NodeProcess:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = ServerProcess([str(path)], command="node", environ=_environ(path))
        self.http = httpx.Client(base_url=self.server.url, timeout=PATIENCE_S, trust_env=False)

    def ask(self, model: str, **headers: str) -> httpx.Response:
        body = {"model": model, "prompt": "say", "max_tokens": 3, "seed": 1}
        return self.http.post("/v1/completions", json=body, headers=headers)

    def text(self, model: str) -> str:
        answer = self.ask(model)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    def states(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in self.http.get("/admin/models").json()["models"]}

    def change(self, action: str, model: str) -> dict[str, Any]:
        answer = self.http.post(f"/admin/models/{action}", json={"model": model})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < ends_s, self.server.log
            time.sleep(0.01)

    def close(self) -> int:
        self.http.close()
        return self.server.stop()


def _environ(path: Path) -> dict[str, str]:
    return os.environ | {"FIRELANE_CACHE_DIR": str(path.parent / "cache")}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], NodeProcess]]:
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    with contextlib.ExitStack() as held:

        def make() -> NodeProcess:
            node = NodeProcess(path)
            held.callback(node.close)
            return node

        yield make


def test_a_node_from_its_start_to_its_end(start) -> None:
    node = start()
    assert node.states() == {"a": "on disk", "b": "on disk"}
    cold = node.ask("a", **{"x-firelane-reject-if-cold": "true"})
    assert (cold.status_code, cold.headers["retry-after"]) == (503, "1")
    assert "not in memory (on disk)" in cold.json()["error"]["message"]
    text = node.text("a")
    assert node.states() == {"a": "ready", "b": "on disk"}
    node.text("b")
    assert node.states()["a"] in ("standby", "packed")
    assert node.text("x") == text

    assert node.change("sleep", "a")["state"] == "standby"
    (engine,) = node.server.engine_pids[:1]
    os.kill(engine, signal.SIGKILL)
    node.wait_for(lambda: node.states()["a"] != "standby")
    assert node.text("a") == text
    os.kill(node.server.engine_pids[0], signal.SIGKILL)
    assert node.text("a") == text
    assert node.change("unload", "a")["state"] == "packed"

    node.path.write_text(FILE.replace('aliases = ["x"]', "idle_s = 0.1") + "[models.c]\n")
    node.server.process.send_signal(signal.SIGHUP)
    node.wait_for(lambda: "c" in node.states())
    assert node.ask("x").status_code == 404
    node.text("c")
    node.text("a")
    node.wait_for(lambda: node.states()["a"] == "standby")
    node.path.write_text("[models.a]\nsorce = 1\n")
    node.server.process.send_signal(signal.SIGHUP)
    node.wait_for(lambda: "did you mean source" in node.server.log)
    assert node.text("a") == text
    assert node.close() == 0


def test_a_node_that_is_killed_starts_again_and_serves(start) -> None:
    """With one model ready, and one in standby."""
    node = start()
    text = node.text("a")
    node.change("sleep", "a")
    node.text("b")
    engines = node.server.engine_pids
    node.server.process.kill()
    node.server.process.wait()
    node.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in engines))
    again = start()
    assert again.states() == {"a": "packed", "b": "packed"}
    assert again.text("a") == text
