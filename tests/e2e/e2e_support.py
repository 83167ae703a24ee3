"""Helpers of the end-to-end tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

MODEL = "firelane-embedded"
TIMEOUT_S = 300.0


def metric(url: str, name: str) -> float:
    """The sum of a metric's series in /metrics."""
    lines = httpx.get(f"{url}/metrics", timeout=TIMEOUT_S).text.splitlines()
    values = [float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " "))]
    assert values, f"no metric {name}"
    return sum(values)


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls a condition that another process makes true."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "still not true"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def status(url: str, path: str = "/health") -> int:
    """The HTTP status, or 0 where nobody answers."""
    try:
        return httpx.get(url + path, timeout=TIMEOUT_S).status_code
    except httpx.TransportError:
        return 0


class RawRequest:
    """A completion request over a socket of its own: sent when made, answered when the server does."""

    def __init__(self, url: str, max_tokens: int = 4, *, key: str = "") -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        body = json.dumps({"prompt": [50, 51, 52], "max_tokens": max_tokens, "ignore_eos": True})
        headers = {"Content-Type": "application/json"} | ({"x-api-key": key} if key else {})
        self._connection.request("POST", "/v1/completions", body, headers)
        # A later connection's answer: the server has read the request above.
        status(url)

    def result(self) -> tuple[int, dict[str, Any]]:
        """Status and body; 0 where the connection broke."""
        with contextlib.closing(self._connection):
            try:
                answer = self._connection.getresponse()
            except ConnectionError:
                return 0, {}
            return answer.status, json.loads(answer.read())
