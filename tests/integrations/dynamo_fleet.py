"""Dynamo's frontend and workers with Firelane's engines, as processes of an interpreter that has Dynamo."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from firelane.bench.server import descendants

TIMEOUT_S = 300.0
POLL_S = 0.05
MODEL = "firelane-embedded"
PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
ENGINE = ("--threads", "1", "--max-num-seqs", "16", "--kv-cache-gib", "0.05")


class Fleet:
    """One frontend, and workers that come and go; all end with it."""

    def __init__(self, python: Path, directory: Path, cache_dir: Path, router: Sequence[str] = ()) -> None:
        self._python, self._directory = python, directory
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith(("FIRELANE_", "PYTHON"))} | {
            "DYN_FILE_KV": str(directory / "discovery"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "FIRELANE_CACHE_DIR": str(cache_dir),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        host = ("--http-host", "127.0.0.1", "--http-port", str(port))
        self._start("frontend", "dynamo.frontend", *host, *PLANES, *router)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Workers first."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        return self._start(f"worker{len(self._processes)}", "firelane_dynamo", *PLANES, *ENGINE, *options)

    def page_exchange(self) -> tuple[str, ...]:
        """Options of a further worker that exchanges pages with others that have such."""
        key = self._directory / "cluster.key"
        key.write_text("0123456789abcdef")
        return ("--kv-transfer-address", f"127.0.0.1:{_free_port()}", "--cluster-key-file", str(key))

    def busy_worker(self) -> subprocess.Popen[bytes]:
        """One that has requests in flight."""
        for number, process in enumerate(self._processes):
            log = self.log(f"worker{number}") if number else ""
            if process.poll() is None and log.count("request received") > log.count("request completed"):
                return process
        raise AssertionError(f"no worker is busy: see {self._directory}")

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def until_ready(self, workers: int) -> None:
        """Until so many workers answer: each has to be known to the frontend."""
        self._wait(lambda: self._instances() >= workers, f"{workers} workers")
        self._wait(lambda: self.models() == [MODEL], "the model")

    def models(self) -> list[str]:
        try:
            return [model["id"] for model in httpx.get(f"{self.url}/v1/models", timeout=60).json()["data"]]
        except httpx.TransportError:
            return []

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, **fields}
        found = httpx.post(f"{self.url}/v1/completions", json=body, timeout=TIMEOUT_S)
        assert found.status_code == 200, found.text
        return found.json()

    def _instances(self) -> int:
        try:
            health = httpx.get(f"{self.url}/health", timeout=60).json()
        except httpx.TransportError:
            return 0
        return sum(one["endpoint"] == "generate" for one in health.get("instances", []))

    def _wait(self, condition: Any, what: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition():
            for process in self._processes:
                assert process.poll() is None, f"process {process.args} ended: see {self._directory}"
            assert time.monotonic() < deadline_s, f"{what}: not there, see {self._directory}"
            time.sleep(POLL_S)

    def _start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self._python), "-m", module, *arguments], stdout=log, stderr=log, env=self._environ
            )
        self._processes.append(process)
        return process


def engine_of(worker: subprocess.Popen[bytes]) -> int:
    """The process id of a worker's engine."""
    found = [pid for pid in descendants(worker.pid) if _command(pid)[1:3] == [b"-m", b"firelane.engine"]]
    return found[0]


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
