"""Requests that mean harm, or that HTTP forbids, as bytes on a socket. Each file is one; its name begins with
the status that is right for it.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from raw_client import BODY, Raw, post, text_of

from firelane.gateway.tenants.keyfile import hashed

FILES = sorted((Path(__file__).parent / "hostile" / "http").iterdir())
KEY = "fl-acme-0123456789abcdef"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file(service, raw, path):
    client = raw()
    client.send(path.read_bytes())
    status, headers, body = client.response()
    assert status == int(path.stem[:3]), body
    assert "forged" not in headers["x-request-id"]
    if status >= 400:
        assert json.loads(body)["error"]["message"]
        assert service.engine.submitted == []
    again = raw()
    again.send(post())
    assert again.response()[0] == 200


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /version HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /version HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * 200_000,
        CHUNKED + CHUNK + b"0\r\na: " + b"x" * 200_000,
        CHUNKED + CHUNK + b"0\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(20_000)),
        CHUNKED + b"1;" + b"x" * 200_000,
        CHUNKED + b"1;abcdefghijklmnopqrstuvwxyz=abcdefghijklmn\r\nx\r\n" * 5000,
        CHUNKED + b"0" * 200_000,
        CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\na: " + b"x" * 200_000,
    ],
    ids=("target", "head", "half_head", "trailer", "trailers", "extension", "extensions", "size", "credit"),
)
def test_all_but_the_body_has_one_limit(raw, endless):
    client = raw()
    client.send(endless)
    status, headers, _ = client.response()
    assert (status, headers["connection"]) == (431, "close")


def test_a_body_in_very_many_chunks_is_served(raw):
    client = raw()
    body = BODY + b" " * 20_000
    client.send(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    assert text_of(client.response()[2]) == "hello world"


@pytest.fixture
def keyed(make_service, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f'[tenants.acme]\nkeys = ["{hashed(KEY)}"]\n')
    return make_service(api_keys=path)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"POST /v1/completions", 401),
        (b"POST /v1/files", 401),
        (b"POST /nowhere", 404),
        (b"PUT /v1/completions", 405),
        (b"GET /health", 413),
        (b"OPTIONS /v1/completions", 413),
    ],
)
@pytest.mark.parametrize("framing", [b"content-length: 90000", b"transfer-encoding: chunked"])
def test_the_head_alone_is_refused(keyed, line, status, framing):
    """No byte of the body is waited for, but what has none to wait for (chunks without a length)."""
    client = Raw(keyed)
    expects = b"expect: 100-continue\r\n" if status != 413 else b""
    client.send(b"%b HTTP/1.1\r\nhost: localhost\r\n%b%b\r\n\r\n" % (line, expects, framing))
    if status == 413 and b"chunked" in framing:
        client.send(b"2000\r\n" + b"x" * 8192)
    got, headers, _ = client.response()
    assert (got, headers["connection"]) == (status, "close")
    assert ("www-authenticate" in headers) is (status == 401)
    assert client.rest() == b""
    client.sock.close()


def test_a_refused_request_without_a_body_leaves_the_connection(keyed):
    client = Raw(keyed)
    client.send(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert client.response()[0] == 401
    client.send(post(headers=b"authorization: Bearer %b\r\n" % KEY.encode()))
    assert client.response()[0] == 200
    client.sock.close()


def test_refusals_wait_for_the_answers_before_them(keyed):
    good = post(headers=b"authorization: Bearer %b\r\n" % KEY.encode())
    client = Raw(keyed)
    client.send(good + post() + good)
    assert [client.response()[0] for _ in range(2)] == [200, 401]
    assert client.rest() == b""
    client.sock.close()


def test_an_upgrade_is_ignored_and_the_connection_goes_on(raw):
    client = raw()
    for body in (BODY, b'{"prompt":"again"}'):
        client.send(post(body, headers=UPGRADE))
        status, headers, answer = client.response()
        assert (status, text_of(answer)) == (200, "hello world")
        assert "connection" not in headers
    client.send(post(headers=UPGRADE) * 2 + post())
    assert [client.response()[0] for _ in range(3)] == [200, 200, 200]


def test_an_upgrade_byte_by_byte(raw):
    client = raw()
    for byte in post(headers=UPGRADE):
        client.send(bytes([byte]))
    assert client.response()[0] == 200


@pytest.mark.parametrize("body", [BODY, b'{"prompt":"say","stream":true}'])
def test_a_client_that_has_closed_its_side_is_answered(service, raw, body):
    service.run(setattr, service.engine, "held", True)
    client = raw()
    client.send(post(body))
    client.sock.shutdown(socket.SHUT_WR)
    service.wait_for(lambda: any(c._half_closed for c in service.gateway._connections._open))
    service.run(setattr, service.engine, "held", False)
    service.run(service.engine.step_on)
    answer = client.rest()
    assert b"HTTP/1.1 200 OK" in answer
    assert b"[DONE]" in answer if b"stream" in body else b"hello world" in answer


def test_a_client_that_closes_its_side_early_is_forgotten(service, raw):
    client = raw()
    client.send(post()[:-5])
    client.sock.shutdown(socket.SHUT_WR)
    assert client.rest() == b""
    service.wait_for(lambda: len(service.gateway._connections) == 0)
