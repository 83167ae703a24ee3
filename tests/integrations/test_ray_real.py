"""Ray itself: its Serve with a Firelane engine, and a group of ranks as actors.

For an interpreter that has Ray Serve LLM and firelane-ray: FIRELANE_TEST_RAY=/path/to/bin/python.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from firelane.bench.server import descendants
from firelane.sources.resolve import EMBEDDED

PYTHON = os.environ.get("FIRELANE_TEST_RAY", "")
APP = Path(__file__).with_name("ray_app.py")
TIMEOUT_S = 600.0
PROMPT = list(range(300, 340))


def _lacks() -> str:
    if not PYTHON:
        return "FIRELANE_TEST_RAY names no interpreter that has Ray Serve LLM"
    done = subprocess.run([PYTHON, "-c", "import ray.serve.llm, firelane_ray.engine"], capture_output=True)
    return "" if done.returncode == 0 else f"{PYTHON} does not import ray.serve.llm and firelane_ray"


LACKS = _lacks()
pytestmark = pytest.mark.skipif(bool(LACKS), reason=LACKS or "none")


@pytest.fixture(scope="module")
def environ(cache_dir: Path) -> dict[str, str]:
    """A start of Ray takes longer than it allows itself where others use the machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FIRELANE_")}
    own = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_raylet_start_wait_time_s": "300",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    }
    return kept | own | {"FIRELANE_CACHE_DIR": str(cache_dir)}


@pytest.fixture(scope="module")
def app(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, log = _free_port(), tmp_path_factory.mktemp("ray") / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [PYTHON, str(APP), str(port), str(EMBEDDED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            env=environ,
        )
    assert process.stdout is not None
    assert process.stdin is not None
    while (line := process.stdout.readline()) != b"READY\n":
        assert line, f"Ray did not start: see {log}"
    yield f"http://127.0.0.1:{port}"
    process.stdin.close()
    process.stdout.close()
    process.wait()


def test_completions_and_chat(app: str) -> None:
    body = {"model": "toy", "prompt": "def fib(n):", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{app}/v1/completions", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8
    chat = {
        "model": "toy",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 8,
        "temperature": 0,
    }
    whole = httpx.post(f"{app}/v1/chat/completions", json=chat, timeout=TIMEOUT_S).json()
    text = whole["choices"][0]["message"]["content"]
    with httpx.stream(
        "POST", f"{app}/v1/chat/completions", json=chat | {"stream": True}, timeout=TIMEOUT_S
    ) as got:
        lines = [line.removeprefix("data: ") for line in got.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    deltas = [choice["delta"].get("content") for line in lines[:-1] for choice in json.loads(line)["choices"]]
    assert "".join(delta or "" for delta in deltas) == text


def test_a_refusal_keeps_its_status(app: str) -> None:
    body = {"model": "toy", "prompt": [10**6], "max_tokens": 8}
    answer = httpx.post(f"{app}/v1/completions", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 400
    assert "vocabulary" in answer.text


def test_ray_starts_another_replica_for_one_whose_server_was_killed(app: str) -> None:
    (pid,) = _pids(lambda command: b"firelane_ray.child" in command)
    os.kill(pid, signal.SIGKILL)
    body = {"model": "toy", "prompt": "def", "max_tokens": 4}

    def serves() -> bool:
        return httpx.post(f"{app}/v1/completions", json=body, timeout=TIMEOUT_S).status_code == 200

    _wait(serves)
    assert pid not in _pids(lambda command: b"firelane_ray.child" in command)


def test_ranks_as_actors_give_the_answer_of_one_process(environ: dict[str, str], tmp_path: Path) -> None:
    port = _free_port()
    serve = (str(EMBEDDED), "--threads", "1", "--max-num-seqs", "8", "--kv-cache-gib", "0.05")
    ranks = (*serve, "--tensor-parallel-size", "2", "--port", str(port))
    group = ("--nnodes", "2", "--cpus", "0.5", "--strategy", "PACK", "--")
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}
    with (tmp_path / "log").open("wb") as log:
        command = [PYTHON, "-m", "firelane_ray.ranks", *group, *ranks]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    try:
        first = _text(port, body, process)
        hosts = [pid for pid in _pids(lambda command: b"--node-rank" in command)]
        assert len(hosts) == 2
        os.kill(hosts[1], signal.SIGKILL)
        assert _text(port, body, process) == first
    finally:
        process.terminate()
        process.wait()
    with subprocess.Popen(
        [PYTHON, "-m", "firelane", "serve", *serve, "--port", str(port)],
        stderr=subprocess.DEVNULL,
        env=environ,
    ) as alone:
        assert _text(port, body, alone) == first
        alone.terminate()


def _text(port: int, body: dict[str, object], process: subprocess.Popen[bytes]) -> str:
    found: list[str] = []

    def answers() -> bool:
        assert process.poll() is None, "it has ended"
        try:
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=TIMEOUT_S)
        except httpx.TransportError:
            return False
        if answer.status_code == 200:
            found.append(answer.json()["choices"][0]["text"])
        return bool(found)

    _wait(answers)
    return found[0]


def _pids(matches: Callable[[list[bytes]], bool]) -> list[int]:
    """Processes of this test, in the order of their start."""
    found: list[int] = []
    for pid in sorted(descendants(os.getpid())):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if matches(command) and b"firelane_ray.ranks" not in command:
            found.append(pid)
    return found


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
