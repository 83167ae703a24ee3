"""A server of two gateway processes on one port."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e_support import TIMEOUT_S, RawRequest, status, wait_until

from firelane.bench.server import ServerProcess, descendants
from firelane.gateway.tenants.keyfile import hashed

CONNECTIONS = 16
"""Enough that both processes get some: all would go to one of them once in 30 thousand times."""
BODY = {"prompt": [50, 51, 52], "max_tokens": 4, "ignore_eos": True}
SERVER, LIMITED, NARROW = (f"key-of-tenant-number-{number}" for number in range(3))
KEYS = f"""
[tenants.all]
keys = ["{hashed(SERVER)}"]
admin = true
[tenants.limited]
keys = ["{hashed(LIMITED)}"]
requests_per_minute = 5
[tenants.narrow]
keys = ["{hashed(NARROW)}"]
max_concurrent = 2
"""


def gateways(server: ServerProcess) -> list[int]:
    """Process ids of those that accept connections."""
    found: list[int] = []
    for pid in descendants(server.process.pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"firelane.server.gateway_process\0" in command:
            found.append(pid)
    return sorted(found)


def each(server: ServerProcess, method: str, path: str, key: str = SERVER, **options) -> list[httpx.Response]:
    """The same request over many connections."""
    headers = {"authorization": f"Bearer {key}"}
    url = server.url + path
    return [
        httpx.request(method, url, headers=headers, timeout=TIMEOUT_S, verify=False, **options)
        for _ in range(CONNECTIONS)
    ]


def hold(server: ServerProcess, count: int, key: str = "") -> list[RawRequest]:
    """Requests of which each has come to its process, while the engine is stopped."""
    requests = [RawRequest(server.url, key=key) for _ in range(count)]
    admin = {"authorization": f"Bearer {SERVER}"} if key else {}

    def in_flight() -> bool:
        text = httpx.get(f"{server.url}/metrics", headers=admin, timeout=TIMEOUT_S).text
        return bool(re.search(rf"^firelane:sequences_in_flight\{{.*\}} {count}\.0$", text, re.MULTILINE))

    wait_until(in_flight)
    return requests


@pytest.fixture(scope="module")
def server(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("gateways")
    (directory / "keys.toml").write_text(KEYS)
    options = ["--backend", "null", "--gateways", "2", "--engine-timeout", "600"]
    options += ["--api-keys", str(directory / "keys.toml"), "--data-dir", str(directory / "data")]
    with ServerProcess(options, environ=environ) as made:
        yield made


def templates_of(gateway: int) -> list[int]:
    """Process ids of those that render chat templates for it."""
    try:
        children = Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split()
        return [
            int(one) for one in children if b"template_worker" in Path(f"/proc/{one}/cmdline").read_bytes()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


@pytest.fixture(scope="module")
def open_server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    """Without keys."""
    options = ["--backend", "null", "--gateways", "2", "--engine-timeout", "600"]
    with ServerProcess(options, environ=environ) as made:
        yield made


def generated(server: ServerProcess) -> float:
    """Tokens since the start, in the metrics of whichever process answers: all say the same."""
    texts = [answer.text for answer in each(server, "GET", "/metrics")]
    (found,) = {
        re.search(r"^vllm:generation_tokens_total\{.*\} (.*)$", text, re.MULTILINE)[1] for text in texts
    }
    shown = [answer.json() for answer in each(server, "GET", "/stats")]
    assert {one["tokens"]["generated"] for one in shown} == {float(found)}
    return float(found)


def requests_of(server: ServerProcess, tenant: str) -> int:
    shown = [answer.json() for answer in each(server, "GET", "/stats")]
    (found,) = {sum(t["requests"] for t in one["tenants"] if t["name"] == tenant) for one in shown}
    return found


def test_both_answer_and_metrics_are_the_sums(server: ServerProcess) -> None:
    tokens, requests = generated(server), requests_of(server, "all")
    answers = each(server, "POST", "/v1/completions", json=BODY)
    assert {answer.status_code for answer in answers} == {200}
    assert {"1", "2"} <= set(re.findall(r"gateway=(\d) request_ended", server.log))
    assert generated(server) - tokens == CONNECTIONS * 4
    assert requests_of(server, "all") - requests == CONNECTIONS


def test_a_rate_holds_for_both_together(server: ServerProcess) -> None:
    answers = each(server, "POST", "/v1/completions", LIMITED, json=BODY)
    taken = [answer for answer in answers if answer.status_code == 200]
    assert len(taken) == 5
    assert {answer.status_code for answer in answers} == {200, 429}
    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in taken]
    assert sorted(left) == [0, 1, 2, 3, 4]


def test_what_is_kept_is_found_whoever_is_asked(server: ServerProcess) -> None:
    headers = {"authorization": f"Bearer {SERVER}"}
    content = b"".join(b'{"a": %d}\n' % number for number in range(60_000))
    upload = httpx.post(
        f"{server.url}/v1/files",
        headers=headers,
        files={"file": ("lines.jsonl", content)},
        data={"purpose": "batch"},
        timeout=TIMEOUT_S,
    )
    file = upload.json()
    assert (upload.status_code, file["bytes"]) == (200, len(content))
    assert {a.json()["id"] for a in each(server, "GET", f"/v1/files/{file['id']}")} == {file["id"]}
    assert {a.content for a in each(server, "GET", f"/v1/files/{file['id']}/content")} == {content}
    asked = {"input": "hello", "max_output_tokens": 16}
    made = [answer.json()["id"] for answer in each(server, "POST", "/v1/responses", json=asked)]
    (found,) = {a.json()["id"] for a in each(server, "GET", f"/v1/responses/{made[0]}")}
    assert found == made[0]
    missing = each(server, "GET", "/v1/responses/resp_none")
    assert {(a.status_code, a.json()["error"]["type"]) for a in missing} == {(404, "not_found_error")}


def test_a_relayed_stream_comes_as_events(server: ServerProcess) -> None:
    asked = {"input": "hello", "max_output_tokens": 16, "stream": True, "ignore_eos": True}
    for answer in each(server, "POST", "/v1/responses", json=asked):
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        assert json.loads(events[-1])["response"]["usage"]["output_tokens"] == 16


def test_heads_and_refusals_are_as_with_one_process(server: ServerProcess) -> None:
    body = each(server, "GET", "/health")[0].content
    for answer in each(server, "HEAD", "/health"):
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-length"] == str(len(body))
    assert {a.status_code for a in each(server, "GET", "/v1/files", "a-key-that-nobody-knows")} == {401}
    assert {a.status_code for a in each(server, "GET", "/metrics", LIMITED)} == {403}


def test_a_killed_process_gives_back_what_its_requests_held(server: ServerProcess) -> None:
    (engine,) = server.engine_pids
    before = gateways(server)
    os.kill(engine, signal.SIGSTOP)
    held = hold(server, 2, NARROW)
    assert {a.status_code for a in each(server, "POST", "/v1/completions", NARROW, json=BODY)} == {429}
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    os.kill(engine, signal.SIGCONT)
    wait_until(lambda: len(gateways(server)) == 2 and not set(gateways(server)) & set(before))
    for request in held:
        assert request.result()[0] == 0
    answers = each(server, "POST", "/v1/completions", NARROW, json=BODY)
    assert {answer.status_code for answer in answers} == {200}
    assert server.engine_pids == [engine]
    assert server.log.count("child_replaced kind=gateway") >= 2


def test_requests_of_the_other_process_go_on(open_server: ServerProcess) -> None:
    (engine,) = open_server.engine_pids
    os.kill(engine, signal.SIGSTOP)
    requests = hold(open_server, CONNECTIONS)
    killed, other = gateways(open_server)
    os.kill(killed, signal.SIGKILL)
    os.kill(engine, signal.SIGCONT)
    found = [request.result()[0] for request in requests]
    assert set(found) == {0, 200}
    wait_until(lambda: len(gateways(open_server)) == 2)
    assert other in gateways(open_server)
    assert {a.status_code for a in each(open_server, "POST", "/v1/completions", json=BODY)} == {200}


def test_engines_are_replaced_under_both(open_server: ServerProcess) -> None:
    (engine,) = open_server.engine_pids
    open_server.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: "restart_complete" in open_server.log)
    assert open_server.engine_pids != [engine]
    assert {a.status_code for a in each(open_server, "POST", "/v1/completions", json=BODY)} == {200}


def test_a_successor_takes_the_port_from_both(environ: dict[str, str]) -> None:
    options = ["--backend", "null", "--take-over", "--engine-timeout", "600"]
    with ServerProcess([*options, "--gateways", "2"], environ=environ) as old:
        (engine,) = old.engine_pids
        os.kill(engine, signal.SIGSTOP)
        begun = hold(old, 4)
        with ServerProcess([*options, "--port", old.url.rpartition(":")[2]], environ=environ) as new:
            wait_until(lambda: "succeeded requests=4" in old.log)
            assert {a.status_code for a in each(new, "POST", "/v1/completions", json=BODY)} == {200}
            os.kill(engine, signal.SIGCONT)
            assert {request.result()[0] for request in begun} == {200}
            assert old.process.wait(TIMEOUT_S) == 0
            assert status(new.url) == 200


def test_a_stopped_process_is_replaced_and_its_connections_are_answered(server: ServerProcess) -> None:
    """Connections that nobody has accepted yet go to its successor."""
    (stopped, other), key = gateways(server), {"authorization": f"Bearer {SERVER}"}
    os.kill(stopped, signal.SIGSTOP)
    answers = each(server, "POST", "/v1/completions", json=BODY)
    assert {answer.status_code for answer in answers} == {200}
    wait_until(lambda: len(gateways(server)) == 2 and stopped not in gateways(server))
    assert other in gateways(server)
    page = httpx.get(server.url + "/metrics", headers=key, timeout=TIMEOUT_S).text
    count = re.search(r'^firelane:child_replacements_total\{kind="gateway"\} (\d+)', page, re.MULTILINE)
    assert count is not None
    assert int(count[1]) >= 1


def test_a_gateway_whose_helpers_are_killed_while_it_starts_is_started_again(
    open_server: ServerProcess, cache_dir: Path
) -> None:
    """Whoever kills one process after the other ends none but those. A start asks a template's process only
    for what no earlier start has kept."""
    shutil.rmtree(cache_dir / "templates", ignore_errors=True)
    before = gateways(open_server)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len(set(gateways(open_server)) - set(before)) > 0)
    (fresh,) = set(gateways(open_server)) - set(before)

    def has_ended() -> bool:
        for pid in templates_of(fresh):
            os.kill(pid, signal.SIGKILL)
        return fresh not in gateways(open_server)

    wait_until(has_ended)
    wait_until(lambda: len(gateways(open_server)) == 2)
    assert "gateway_not_started" in open_server.log
    answers = each(open_server, "POST", "/v1/completions", json=BODY)
    assert {answer.status_code for answer in answers} == {200}
