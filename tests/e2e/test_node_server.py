"""A node on the null backend: models come and go, its engines and itself are killed at every state, its file
is read again."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_support import is_running

from firelane.bench.server import ServerProcess
from firelane.sources.resolve import EMBEDDED

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
    return os.environ | {"FIRELANE_CACHE_DIR": str(path.parent / "cache"), "FIRELANE_ALLOW_HTTP": "1"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], NodeProcess]]:
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    with contextlib.ExitStack() as held:

        def make(path: Path) -> NodeProcess:
            node = NodeProcess(path)
            held.callback(node.close)
            return node

        yield functools.partial(make, path=path)


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


def test_vllms_paths_of_sleep(start) -> None:
    node = start()
    text = node.text("a")

    def ask(method: str, path: str) -> Any:
        answer = node.http.request(method, path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert ask("GET", "/is_sleeping") == {"is_sleeping": False}
    assert ask("POST", "/sleep?level=1") == {"is_sleeping": True}
    assert node.states()["a"] == "standby"
    assert ask("GET", "/is_sleeping?model=x") == {"is_sleeping": True}
    assert ask("POST", "/wake_up?model=a&tags=weights") == {"is_sleeping": False}
    assert node.states()["a"] == "ready"
    ask("POST", "/sleep?level=2&mode=wait")
    assert node.states()["a"] == "packed"
    ask("POST", "/wake_up")
    assert node.text("a") == text
    assert ask("GET", "/load") == {"server_load": 0}


def test_a_node_that_is_killed_starts_again_and_serves(start) -> None:
    """With one model ready, and one in standby."""
    node = start()
    text = node.text("a")
    node.change("sleep", "a")
    node.text("b")
    engines = node.server.engine_pids
    node.server.process.kill()
    node.server.process.wait()
    node.wait_for(lambda: not any(map(is_running, engines)))
    again = start()
    assert again.states() == {"a": "packed", "b": "packed"}
    assert again.text("a") == text


class _Store(ThreadingHTTPServer):
    """A web server with the carried model, which gives nothing before it is opened."""

    def __init__(self) -> None:
        self.opened, self.asked = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), _File)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_args: Any) -> None:
        """A client that is killed goes away in the middle of an answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _File(BaseHTTPRequestHandler):
    """One file, or a range of it."""

    server: _Store

    def do_GET(self) -> None:
        self.server.asked.set()
        self.server.opened.wait(PATIENCE_S)
        self.wfile.write(self._head())

    def do_HEAD(self) -> None:
        self._head()

    def _head(self) -> bytes:
        path = EMBEDDED / self.path.strip("/")
        if not path.is_file():
            self.send_error(404)
            return b""
        data, wanted = path.read_bytes(), self.headers.get("range")
        first, last = 0, len(data) - 1
        if wanted is not None:
            first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        self.send_response(200 if wanted is None else 206)
        self.send_header("etag", '"1"')
        self.send_header("last-modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if wanted is not None:
            self.send_header("content-range", f"bytes {first}-{last}/{len(data)}")
        part = data[first : last + 1]
        self.send_header("content-length", str(len(part)))
        self.end_headers()
        return part

    def log_message(self, *_args: Any) -> None: ...


@pytest.fixture
def store() -> Iterator[_Store]:
    pytest.importorskip("obstore", reason="obstore is not installed")
    with _Store() as made:
        yield made
        made.opened.set()
        made.shutdown()


def test_a_model_of_a_store_comes_and_goes(start, store: _Store) -> None:
    path = start.keywords["path"]
    path.write_text(f'{FILE}[models.c]\nsource = "{store.url}"\n')
    node = start()
    assert node.states() == {"a": "on disk", "b": "on disk", "c": "absent"}
    cold = node.ask("c", **{"x-firelane-reject-if-cold": "true"})
    assert "not in memory (absent)" in cold.json()["error"]["message"]
    assert node.http.post("/tokenize", json={"model": "c", "prompt": "x"}).status_code == 503
    tags = node.http.get("/api/tags").json()["models"]
    assert "c:latest" in [model["name"] for model in tags]
    with node.http.stream("POST", "/api/pull", json={"model": "c"}) as answer:
        assert json.loads(next(answer.iter_lines())) == {"status": "pulling manifest"}
        assert store.asked.wait(PATIENCE_S)
    assert node.states()["c"] == "pulling"
    store.opened.set()
    assert node.text("c")
    assert node.states()["c"] == "ready"
    used = node.http.post("/admin/models/remove", json={"model": "c"})
    assert (used.status_code, "unload it first" in used.text) == (400, True)
    node.change("unload", "c")
    assert node.change("pull", "c")["state"] == "packed"
    assert node.change("remove", "c")["state"] == "absent"
    assert node.text("c")


EVERY_STATE = """
[node]
budget_gib = 0.3
min_residence_s = 0.0
[engine]
backend = "null"
max_num_seqs = 2
kv_cache_gib = 0.02
[models.ready]
[models.standby]
[models.sleeping]
[models.waking]
[models.loading]
[models.pulling]
"""


class _Held:
    """A node with a model in each state: engines that are stopped do nothing that they are told. asked:
    requests that wait for these models, whatever becomes of them."""

    def __init__(self, node: NodeProcess, asked: ThreadPoolExecutor) -> None:
        self.node, self._asked = node, asked
        self.pids: set[int] = set()

    def hold_all(self) -> None:
        for name in ("ready", "standby", "sleeping", "waking"):
            pid = self._loaded(name)
            if name in ("standby", "waking"):
                self.node.change("sleep", name)
            if name in ("sleeping", "waking"):
                os.kill(pid, signal.SIGSTOP)
        self._ask("/admin/models/sleep", {"model": "sleeping"})
        for name in ("waking", "pulling"):
            self._ask("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})
        self._stop_while_it_loads()
        self.node.wait_for(lambda: all(name == state for name, state in self.node.states().items()))
        self.pids |= set(_children(self.node.server.process.pid, "firelane.sources"))

    def _engines(self) -> list[int]:
        return _children(self.node.server.process.pid, "firelane.engine")

    def _loaded(self, name: str) -> int:
        self.node.text(name)
        (pid,) = set(self._engines()) - self.pids
        self.pids.add(pid)
        return pid

    def _stop_while_it_loads(self) -> None:
        """Once more where it was ready before."""
        while self.node.states()["loading"] != "loading":
            self._ask("/v1/completions", {"model": "loading", "prompt": "x", "max_tokens": 1})
            self.node.wait_for(lambda: bool(set(self._engines()) - self.pids))
            (pid,) = set(self._engines()) - self.pids
            os.kill(pid, signal.SIGSTOP)
            if self.node.states()["loading"] != "loading":
                os.kill(pid, signal.SIGCONT)
                self.node.change("unload", "loading")
        self.pids.add(pid)

    def _ask(self, path: str, body: dict[str, Any]) -> None:
        def work() -> None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(self.node.server.url + path, json=body, timeout=PATIENCE_S, trust_env=False)

        self._asked.submit(work)


def test_a_node_that_is_killed_leaves_nothing_whatever_its_models_do(start, store: _Store) -> None:
    path = start.keywords["path"]
    path.write_text(f'{EVERY_STATE}source = "{store.url}"\n')
    with ThreadPoolExecutor() as asked:
        held = _Held(start(), asked)
        held.hold_all()
        assert len(held.pids) == 6
        held.node.server.process.kill()
        held.node.server.process.wait()
    for pid in held.pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)  # one that was stopped before it could ask to be killed
    held.node.wait_for(lambda: not any(map(is_running, held.pids)))
    store.opened.set()
    again = start()
    assert again.states() == dict.fromkeys(("ready", "standby", "sleeping", "waking"), "packed") | {
        "loading": again.states()["loading"],
        "pulling": "absent",
    }
    texts = {again.text(name) for name in again.states()}
    assert len(texts) == 1


def _children(pid: int, module: str) -> list[int]:
    """Processes that it has started, which run a module."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes()]
