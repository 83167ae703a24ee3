"""Roles of engines behind two gateway processes: whichever of them is asked, all keep to the new roles."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from e2e_support import MODEL, TIMEOUT_S, metric, wait_until
from test_gateways import gateways

from firelane.bench.server import ServerProcess

CONNECTIONS = 8
"""Enough that both processes get some, but for once in 128 times."""
PROMPT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n" * 12
BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "seed": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    options = ["--prefill", "1", "--decode", "1", "--gateways", "2", "--kv-cache-gib", "0.1"]
    with ServerProcess(options, environ=environ) as made:
        wait_until(lambda: roles(made) == {(("0", "prefill", "ready"), ("1", "decode", "ready"))})
        yield made


def ask(server: ServerProcess, **fields: Any) -> str:
    """Over a connection of its own."""
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY | fields, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def ask_many(server: ServerProcess, **fields: Any) -> set[str]:
    return {ask(server, **fields) for _ in range(CONNECTIONS)}


def change(server: ServerProcess, engine: str, role: str) -> None:
    body = {"engine": engine, "role": role}
    answer = httpx.post(f"{server.url}/admin/engines/role", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text


def roles(server: ServerProcess) -> set[tuple[tuple[str, str, str], ...]]:
    """Return the engines' roles and states as all processes report them: one entry where they agree."""
    answers = [httpx.get(f"{server.url}/admin/engines", timeout=TIMEOUT_S) for _ in range(CONNECTIONS)]
    reports = [answer.json()["engines"] for answer in answers]
    return {tuple((one["name"], one["role"], one["state"]) for one in report) for report in reports}


def handed_over(server: ServerProcess) -> float:
    return metric(server.url, "firelane:handed_over_total")


def test_all_processes_keep_to_new_roles(server: ServerProcess) -> None:
    expected = ask(server)
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(ask, server) for _ in range(8)]
        change(server, "1", "prefill")
        change(server, "0", "decode")
        assert {stream.result() for stream in streams} == {expected}
    assert roles(server) == {(("0", "decode", "ready"), ("1", "prefill", "ready"))}
    before = handed_over(server)
    assert ask_many(server) == {expected}
    wait_until(lambda: handed_over(server) == before + CONNECTIONS)


def test_a_role_outlives_gateways_and_engines(server: ServerProcess) -> None:
    """Nothing is handed over while all engines are for decode, whoever was started again meanwhile."""
    change(server, "1", "decode")
    expected, before = ask(server), handed_over(server)
    deaths = metric(server.url, "firelane:engine_deaths_total")
    old, ended = gateways(server), server.engine_pids[0]
    for pid in (old[0], ended):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(gateways(server)) == 2 and old[0] not in gateways(server))
    wait_until(lambda: metric(server.url, "firelane:engine_deaths_total") > deaths)
    wait_until(lambda: roles(server) == {(("0", "decode", "ready"), ("1", "decode", "ready"))})
    assert ask_many(server) == {expected}
    assert handed_over(server) == before
    change(server, "1", "prefill")
    assert ask_many(server) == {expected}
    wait_until(lambda: handed_over(server) == before + CONNECTIONS)
