"""`firelane serve` with two models, each with an engine process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import httpx
import pytest
from e2e_support import status, wait_until

from firelane.bench.server import ServerProcess
from firelane.sources.resolve import EMBEDDED


@pytest.fixture(scope="module")
def server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    models = ["--model", f"one={EMBEDDED}", "--model", f"two={EMBEDDED}", "--alias", "ii=two"]
    with ServerProcess(["--backend", "null", *models], environ=environ) as started:
        yield started


def test_both_answer(server: ServerProcess) -> None:
    cards = httpx.get(f"{server.url}/v1/models", timeout=600).json()["data"]
    assert [(card["id"], card["root"]) for card in cards] == [("one", "one"), ("two", "two"), ("ii", "two")]
    assert len(server.engine_pids) == 2
    for name in ("one", "two", "ii"):
        body = {"model": name, "prompt": "a", "max_tokens": 3, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=600).json()
        assert answer["usage"]["completion_tokens"] == 3
        assert answer["model"] == name


def test_an_engine_is_started_again_for_its_model(server: ServerProcess) -> None:
    first = server.engine_pids
    os.kill(first[-1], signal.SIGKILL)
    wait_until(lambda: len(server.engine_pids) == 2 and server.engine_pids != first)
    wait_until(lambda: status(server.url) == 200)
    deaths = httpx.get(f"{server.url}/metrics", timeout=600).text.count(
        "firelane:engine_deaths_total{model_name="
    )
    assert deaths == 2  # counted for each model
    for name in ("one", "two"):
        body = {"model": name, "prompt": "a", "max_tokens": 1}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=600).status_code == 200
