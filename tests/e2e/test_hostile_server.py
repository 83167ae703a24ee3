"""The table of hostile requests, and rude connections, against a server that computes."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from e2e_support import metric, wait_until

from firelane.bench.server import ServerProcess
from tests.gateway.hostile_fields import CHAT, COMPLETIONS, GOOD, RESPONSES, RUN
from tests.gateway.hostile_requests import GROUPS

LONGEST_S = 60.0
GREEDY = {"prompt": "def main():", "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def server(environ: dict[str, str]) -> Iterator[ServerProcess]:
    options = ["--served-model-name", "toy", "--unknown-fields", "refuse"]
    with ServerProcess(["--max-num-seqs", "16", *options], environ=environ) as server:
        yield server


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONGEST_S, trust_env=False) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_changed(http: httpx.Client, server: ServerProcess) -> Iterator[None]:
    """A greedy answer is the same before and after, and no sequence is left running."""
    before = http.post(COMPLETIONS, json=GREEDY).json()["choices"]
    yield
    wait_until(lambda: http.post(COMPLETIONS, json=GREEDY).json()["choices"] == before)
    wait_until(lambda: metric(server.url, "vllm:num_requests_waiting") == 0)
    assert "Traceback (most recent" not in server.log


@pytest.mark.parametrize("group", GROUPS)
def test_requests(http: httpx.Client, group: str) -> None:
    wrong: list[str] = []
    for case in GROUPS[group]:
        start_s = time.perf_counter()
        try:
            answer = http.request(case.method, case.path, content=case.body, headers=case.headers)
        except httpx.TransportError as error:
            wrong.append(f"{case.name}: {error!r} after {time.perf_counter() - start_s:.1f} s")
            continue
        keeps_none = answer.status_code == 503 and case.path.startswith(("/v1/files", "/v1/batches"))
        if answer.status_code not in case.right and not keeps_none:
            wrong.append(f"{case.name}: {answer.status_code}: {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)


def connect(server: ServerProcess) -> socket.socket:
    at = urlsplit(server.url)
    return socket.create_connection((at.hostname or "", at.port or 0), timeout=LONGEST_S)


def request_bytes(path: str, **fields: object) -> bytes:
    body = json.dumps({**GOOD[path], "ignore_eos": True, "max_tokens": 64, "stream": True, **fields}).encode()
    return post(path, body)


def post(path: str, body: bytes) -> bytes:
    """The answer ends with the connection: who reads on does not wait for more."""
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body


def test_clients_that_leave_at_every_moment_of_their_request(server: ServerProcess) -> None:
    whole = request_bytes(CHAT)
    for size in range(0, len(whole) + 1, 3):
        with connect(server) as sock:
            sock.sendall(whole[:size])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_clients_that_leave_at_every_moment_of_the_answer(server: ServerProcess, path: str) -> None:
    draw = random.Random(3)
    for _ in range(24):
        with connect(server) as sock:
            sock.sendall(request_bytes(path))
            left = draw.randrange(1, 6000)
            while left > 0 and (got := sock.recv(min(left, 512))):
                left -= len(got)


def test_requests_behind_each_other(server: ServerProcess) -> None:
    """Pipelined: answered in order; one that is broken ends the connection, not the server."""
    one = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with connect(server) as sock:
        sock.sendall(one * 8 + b"NONSENSE\r\n\r\n" + one)
        got = b""
        while piece := sock.recv(65536):
            got += piece
    assert got.count(b"HTTP/1.1 200") == 8
    assert b"HTTP/1.1 400" in got


def test_headers_that_trickle_do_not_hold_others_up(server: ServerProcess, http: httpx.Client) -> None:
    socks = [connect(server) for _ in range(50)]
    try:
        for byte in request_bytes(CHAT)[:40]:
            for sock in socks:
                sock.sendall(bytes([byte]))
        assert http.get("/version").status_code == 200
    finally:
        for sock in socks:
            sock.close()


SMUGGLED = [
    b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}   ",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999999999999999999\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"GET /version HTTP/9.9\r\n\r\n",
    b"GET  /version  HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /version HTTP/1.1\r\n" + b"a: " + b"x" * 100_000 + b"\r\n\r\n",
    b"GET /version HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(20_000)) + b"\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"\0" * 1000,
]


@pytest.mark.parametrize("sent", SMUGGLED, ids=range(len(SMUGGLED)))
def test_bytes_that_are_no_request(server: ServerProcess, sent: bytes) -> None:
    with connect(server) as sock:
        try:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            got = sock.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return
    assert not got.startswith(b"HTTP/1.1 5")


@pytest.mark.parametrize("path", [RESPONSES, RUN])
def test_the_other_apis_survive_their_clients(server: ServerProcess, path: str) -> None:
    body = (
        b'{"input": "x", "stream": true, "max_output_tokens": 64, "ignore_eos": true}'
        if path == RESPONSES
        else b'{"prompt": "x", "stream": true, "max_tokens": 64}'
    )
    for size in (0, 50, 300, 1000, 3000):
        with connect(server) as sock:
            sock.sendall(post(path, body))
            while size > 0 and (got := sock.recv(min(size, 512))):
                size -= len(got)
