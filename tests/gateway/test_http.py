"""The server below the API: raw bytes on a socket."""

from __future__ import annotations

import json
import socket

import pytest
from raw_client import BODY, Raw, post, text_of

from firelane.gateway import server
from firelane.gateway.config import HttpLimits
from firelane.gateway.http import connections


def test_keep_alive_and_pipelining(raw):
    client = raw()
    client.send(post() + b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" + post())
    answers = [client.response() for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 200]
    assert text_of(answers[0][2]) == text_of(answers[2][2]) == "hello world"
    assert b"version" in answers[1][2]


def test_byte_by_byte(raw):
    client = raw()
    for byte in post():
        client.send(bytes([byte]))
    assert client.response()[0] == 200


def test_chunked_body(raw):
    client = raw()
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    for piece in (BODY[:5], BODY[5:]):
        client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    client.send(b"0\r\n\r\n")
    assert text_of(client.response()[2]) == "hello world"


def test_expect_continue(raw):
    client = raw()
    client.send(post(headers=b"expect: 100-continue\r\n")[: -len(BODY)])
    assert client.response()[0] == 100
    client.send(BODY)
    assert client.response()[0] == 200


@pytest.mark.parametrize("framing", [b"content-length: 200000", b"transfer-encoding: chunked"])
def test_body_too_large(raw, framing):
    client = raw()
    client.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n%b\r\n\r\n" % framing)
    if b"chunked" in framing:
        client.send(b"%x\r\n%b\r\n" % (150_000, b"x" * 150_000))
    status, headers, body = client.response()
    assert status == 413
    assert headers["connection"] == "close"
    assert "100000 bytes" in json.loads(body)["error"]["message"]
    assert client.rest() == b""


def test_headers_too_large(raw):
    client = raw()
    client.send(b"GET /version HTTP/1.1\r\nx: " + b"a" * 70_000)
    assert client.response()[0] == 431
    assert client.rest() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"NONSENSE\r\n\r\n",
        b"GET /version HTTP/9.9\r\n\r\n",
        b"GET /version HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_malformed(raw, data):
    client = raw()
    client.send(data)
    status, headers, body = client.response()
    assert status == 400
    assert headers["connection"] == "close"
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert client.rest() == b""


def test_answers_before_a_malformed_request_arrive(raw):
    client = raw()
    client.send(post() + b"NONSENSE\r\n\r\n")
    assert client.response()[0] == 200
    assert client.response()[0] == 400


def test_paths_and_methods(service):
    answer = service.http.get("/nowhere?x=1")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_path"
    answer = service.http.get("/v1/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert service.http.post("/health").headers["allow"] == "GET, HEAD"
    assert service.http.get("/version?x=1").status_code == 200


def test_head(raw):
    client = raw()
    client.send(b"HEAD /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
    client.send(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
    while b"version" not in client.buffer:
        client.receive()
    head, _, rest = client.buffer.partition(b"\r\n\r\n")
    assert b"content-length" in head
    assert rest.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("version", "headers"), [(b"1.0", b""), (b"1.1", b"connection: close\r\n")])
def test_connection_is_closed_when_asked(raw, version, headers):
    client = raw()
    client.send(post(headers=headers, version=version))
    status, answer_headers, _ = client.response()
    assert (status, answer_headers["connection"]) == (200, "close")
    assert client.rest() == b""


def test_http_1_0_stream_ends_with_the_connection(raw):
    client = raw()
    client.send(post(b'{"prompt":"say","stream":true}', version=b"1.0"))
    data = client.rest()
    assert b"chunked" not in data
    assert data.endswith(b"data: [DONE]\n\n")


def test_upgrade_is_ignored(raw):
    client = raw()
    client.send(
        b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    )
    assert client.response()[0] == 200


def test_too_many_pipelined_requests(service, raw):
    service.engine.held = True
    client = raw()
    client.send(post() + b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" * 40)
    service.wait_for(lambda: bool(service.engine.running))
    service.engine.held = False
    service.run(service.engine.step_on)
    assert client.response()[0] == 200
    data = client.rest()
    assert data.count(b"HTTP/1.1 200") <= 33
    assert b"HTTP/1.1 429" in data


def test_slow_request_and_idle_connection_are_cut(make_service):
    service = make_service(limits=HttpLimits(header_s=-1, receive_s=-1, idle_s=-1))
    head, body, idle = Raw(service), Raw(service), Raw(service)
    head.send(b"POST /v1/completions HTTP/1.1\r\ncontent-")
    body.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nabc")
    service.wait_for(lambda: sum(c.busy for c in service.gateway._connections._open) == 2)
    service.run(service.gateway._connections.sweep)
    assert idle.rest() == b""
    for client, part in ((head, "headers"), (body, "body")):
        status, headers, answer = client.response()
        assert (status, headers["connection"]) == (408, "close")
        assert f"request's {part} did not" in json.loads(answer)["error"]["message"]
        client.sock.close()
    idle.sock.close()


def test_the_gateway_looks_for_what_is_late(make_service, monkeypatch):
    monkeypatch.setattr(server, "SWEEP_S", 0.001)
    idle = Raw(make_service(limits=HttpLimits(idle_s=-1)))
    assert idle.rest() == b""
    idle.sock.close()


def test_headers_have_a_limit_of_their_own(make_service):
    service = make_service(limits=HttpLimits(header_s=-1, receive_s=1000))
    body = Raw(service)
    body.send(post()[:-5])
    service.wait_for(lambda: any(c.busy for c in service.gateway._connections._open))
    service.run(service.gateway._connections.sweep)
    body.send(post()[-5:])
    assert body.response()[0] == 200
    body.sock.close()


def test_connections_beyond_the_limit_are_told_so(make_service):
    service = make_service(max_connections=2)
    first, second, third = Raw(service), Raw(service), Raw(service)
    status, headers, body = third.response()
    assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
    assert "all 2 connections" in json.loads(body)["error"]["message"]
    third.sock.close()
    first.send(post())
    assert first.response()[0] == 200
    first.sock.close()
    service.wait_for(lambda: len(service.gateway._connections) == 1)
    fourth = Raw(service)
    fourth.send(post())
    assert fourth.response()[0] == 200
    for client in (second, fourth):
        client.sock.close()


def test_far_too_many_connections_are_cut(make_service, monkeypatch):
    monkeypatch.setattr(connections, "REFUSALS", 1)
    service = make_service(max_connections=1)
    clients = [Raw(service) for _ in range(3)]
    assert clients[1].response()[0] == 503
    with pytest.raises((ConnectionResetError, EOFError)):
        clients[2].response()
    for client in clients:
        client.sock.close()


def test_the_limit_of_open_files_bounds_connections(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    assert connections.connection_limit(0) == connections.connection_limit(5000) == 832
    assert connections.connection_limit(10) == 10


def test_trickling_connections_do_not_hold_up_a_stream(service):
    """500 clients that send their headers a byte at a time."""
    slow = [Raw(service) for _ in range(500)]
    for byte in b"POST /v1/comp":
        for client in slow:
            client.send(bytes([byte]))
        events = service.events("/v1/completions", {"prompt": "say", "max_tokens": 20})
        assert len(events) > 10
    for client in slow:
        client.sock.close()


def stalled_client(service) -> socket.socket:
    """Asked for an endless stream and does not read it, until the server noticed."""
    service.engine.max_model_len = 1 << 20
    service.call(service.restart())
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", service.gateway.port))
    client.sendall(post(b'{"prompt":"a","stream":true,"ignore_eos":true,"max_tokens":1000000}'))
    (connection,) = wait_for_connections(service)
    service.wait_for(lambda: connection._outflow.stalled)
    return client


def test_client_that_does_not_read_is_cut(make_service):
    service = make_service(limits=HttpLimits(stall_s=-1, buffer_bytes=1024))
    client = stalled_client(service)
    service.run(service.gateway._connections.sweep)
    service.wait_for(lambda: bool(service.engine.aborted))
    assert service.gateway.in_flight == 0
    client.close()


def test_bodies_of_all_connections_have_a_limit(make_service):
    service = make_service(limits=HttpLimits(all_bodies_bytes=10_000))
    held = service.gateway._connections
    first, second = Raw(service), Raw(service)
    long = b'{"prompt":"%b","max_tokens":1}' % (b"a" * 9000)
    first.send(post(long)[:-100])
    service.wait_for(lambda: held.held_bytes > 8000)
    second.send(post(long)[:-100])
    assert second.response()[0] == 503
    second.sock.close()
    first.send(post(long)[-100:])
    assert first.response()[0] == 400  # more tokens than the model takes
    service.wait_for(lambda: held.held_bytes == 0)
    first.send(post(long)[:-100])
    service.wait_for(lambda: held.held_bytes > 8000)
    first.sock.close()
    service.wait_for(lambda: held.held_bytes == 0)


def test_a_client_that_does_not_read_holds_up_nobody(make_service):
    service = make_service(limits=HttpLimits(buffer_bytes=1024))
    client = stalled_client(service)
    for _ in range(3):
        assert len(service.events("/v1/completions", {"prompt": "say", "max_tokens": 50})) >= 12
    client.close()


def wait_for_connections(service):
    service.wait_for(lambda: len(service.gateway._connections) == 1)
    return service.gateway._connections._open
