"""Kept streams of a server of two gateway processes: a reader may come to the other one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_support import TIMEOUT_S, wait_until

from firelane.bench.server import ServerProcess, descendants

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 40, "ignore_eos": True},
    "/v1/completions": {"prompt": "hi", "max_tokens": 40, "ignore_eos": True},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 40, "ignore_eos": True},
}
CONNECTIONS = 16
"""Enough that both processes get some: all would go to one of them once in 30 thousand times."""


@pytest.fixture(scope="module")
def server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    options = ["--backend", "null", "--gateways", "2", "--engine-timeout", "600"]
    with ServerProcess(options, environ=environ) as made:
        yield made


def gateways(server: ServerProcess) -> list[int]:
    """Process ids of those that accept connections."""
    found: list[int] = []
    for pid in descendants(server.process.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"firelane.server.gateway_process\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def ask(server: ServerProcess, method: str, path: str, **options: Any) -> httpx.Response:
    """A request on a connection of its own."""
    return httpx.request(method, server.url + path, timeout=TIMEOUT_S, **options)


@pytest.mark.parametrize("path", list(BODIES))
def test_whoever_is_asked_has_the_stream(server: ServerProcess, path: str) -> None:
    made = ask(
        server,
        "POST",
        path,
        json={**BODIES[path], "stream": True, "temprature": 1},
        headers={"x-stream-resume": "60"},
    )
    assert made.status_code == 200
    assert made.headers.get_list("x-ignored-fields") == ["temprature"]
    assert len(made.headers.get_list("x-request-id")) == 1
    stream_id = made.headers["x-stream-id"]
    events = [event + b"\n\n" for event in made.content.split(b"\n\n")[:-1]]
    for last in range(CONNECTIONS):
        answer = ask(server, "GET", f"{path}/{stream_id}?stream=true&starting_after={last}")
        assert answer.content == b"".join(events[last + 1 :])
        assert answer.headers["x-stream-id"] == stream_id
    missing = [ask(server, "GET", f"{path}/{stream_id}x?stream=true") for _ in range(CONNECTIONS)]
    assert {answer.status_code for answer in missing} == {404}
    assert ask(server, "DELETE", f"{path}/{stream_id}").status_code == 200
    gone = [ask(server, "GET", f"{path}/{stream_id}?stream=true") for _ in range(CONNECTIONS)]
    assert {answer.status_code for answer in gone} == {404}


@pytest.mark.parametrize("stream", [False, True])
def test_whoever_is_asked_has_a_stored_answer(server: ServerProcess, stream: bool) -> None:
    made = ask(server, "POST", CHAT, json={**BODIES[CHAT], "store": True, "stream": stream})
    assert made.status_code == 200
    answer_id = made.headers["x-stream-id"] if stream else made.json()["id"]
    found = [ask(server, "GET", f"{CHAT}/{answer_id}") for _ in range(CONNECTIONS)]
    assert {answer.status_code for answer in found} == {200}
    assert len({answer.content for answer in found}) == 1
    assert found[0].json()["usage"]["completion_tokens"] == 40
    listed = [ask(server, "GET", CHAT).json()["data"] for _ in range(CONNECTIONS)]
    assert all(answer_id in [one["id"] for one in data] for data in listed)


@pytest.mark.parametrize("path", list(BODIES))
def test_refusals_are_those_of_one_process(server: ServerProcess, path: str) -> None:
    wrong = [
        ask(
            server, "POST", path, json={**BODIES[path], "stream": True}, headers={"x-stream-resume": "no"}
        ).json()["error"]["message"]
        for _ in range(4)
    ]
    assert all("use true, false, or 0 to" in message for message in wrong)
    long = {**BODIES[path], "stream": True, "max_tokens": 10**9}
    refused = ask(server, "POST", path, json=long, headers={"x-stream-resume": "60"})
    plain = ask(server, "POST", path, json=long)
    assert refused.status_code == plain.status_code
    if refused.status_code != 200:
        assert set(refused.headers) == set(plain.headers)
        assert json.loads(refused.content)["error"].keys() == json.loads(plain.content)["error"].keys()


def test_gateways_that_die_under_a_reader_lose_nothing(server: ServerProcess) -> None:
    body = {**BODIES[CHAT], "max_tokens": 400, "stream": True, "seed": 3}
    with httpx.stream(
        "POST", server.url + CHAT, json=body, headers={"x-stream-resume": "60"}, timeout=TIMEOUT_S
    ) as answer:
        stream_id = answer.headers["x-stream-id"]
        for pid in gateways(server):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(gateways(server)) == 2)
    whole = ask(server, "GET", f"{CHAT}/{stream_id}?stream=true").content
    events = whole.split(b"\n\n")[:-1]
    assert [int(event.partition(b"\n")[0].removeprefix(b"id: ")) for event in events] == list(
        range(len(events))
    )
    assert events[-1].endswith(b"data: [DONE]")


def test_a_server_that_stops_sends_the_rest_through_both(environ: dict[str, str]) -> None:
    options = ["--gateways", "2", "--engine-timeout", "600", "--drain-timeout", "60"]
    with ServerProcess(options, environ=environ) as made:
        body = {**BODIES[CHAT], "max_tokens": 400, "stream": True}
        with httpx.stream(
            "POST", made.url + CHAT, json=body, headers={"x-stream-resume": "60"}, timeout=TIMEOUT_S
        ) as answer:
            made.process.send_signal(signal.SIGTERM)
            whole = b"".join(answer.iter_raw())
        assert whole.endswith(b"data: [DONE]\n\n")
