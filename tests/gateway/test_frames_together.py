"""An answer does not depend on how the frames of its engine arrive."""

from __future__ import annotations

import re

import pytest

from firelane.gateway.http.http_exchange import HttpExchange
from firelane.link.framing import encode

TEXT = "grüße 🔥, und noch mehr davon! Dann ist Schluss."
OWN = re.compile(r'[a-z]+[-_][0-9a-f]{16,}|"(created|created_at|completed_at)":\d+')
"""Ids and times, which differ from answer to answer."""
PLAIN = {"prompt": "say", "max_tokens": 40}
CHAT = {"messages": [{"role": "user", "content": "say"}], "max_tokens": 40}
LIVE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture
def together(service):
    """Sets how many frames leave the engine at once; those of a request's end leave with what is there."""
    kept: list[bytes] = []
    most = 1

    def send(frame):
        kept.append(encode(frame))
        if len(kept) >= most or getattr(frame, "finished", None):
            data = b"".join(kept)
            kept.clear()
            service.engine.sock.setblocking(True)
            service.engine.sock.sendall(data)
            service.engine.sock.setblocking(False)

    def set_most(number):
        nonlocal most
        most = number

    service.engine.send = send
    return set_most


def answer(service, path, body):
    got = service.http.post(path, json={**body, "stream": True})
    assert got.status_code == 200, got.text
    return OWN.sub("", got.text)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", PLAIN | USAGE),
        ("/v1/completions", PLAIN | {"stop": ["mehr"]} | USAGE),
        ("/v1/completions", PLAIN | {"logprobs": 2, "echo": True}),
        ("/v1/completions", PLAIN | {"return_token_ids": True, "stop": ["nie"]}),
        ("/v1/chat/completions", CHAT | USAGE),
        ("/v1/chat/completions", CHAT | {"max_tokens": 6} | USAGE),
        ("/v1/chat/completions", CHAT | LIVE),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"input": "say", "max_output_tokens": 40}),
    ],
)
def test_a_stream_is_the_same(service, together, path, body):
    service.text = TEXT
    expected = answer(service, path, body)
    assert len(expected) > 200
    for most in (2, 7, 1000):
        together(most)
        assert answer(service, path, body) == expected


def test_what_comes_behind_a_stop_string_does_not_count(service, together):
    service.text = "abcdefgh" * 4
    body = PLAIN | {"stop": ["cd"], "max_tokens": 32}
    for most in (1, 1000):
        together(most)
        got = service.http.post("/v1/completions", json=body).json()
        assert got["choices"][0]["text"] == "ab"
        assert got["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("more", [{}, {"stop": ["nie"]}])
def test_events_of_frames_that_come_together_are_one_write(service, together, monkeypatch, more):
    sent = []
    send = HttpExchange.send

    def note(exchange, data):
        sent.append(data)
        send(exchange, data)

    monkeypatch.setattr(HttpExchange, "send", note)
    service.text = "x" * 20
    together(1000)
    events = service.events("/v1/completions", PLAIN | {"max_tokens": 20} | more)
    texts = [piece.count(b'"text":"x"') for piece in sent]
    assert [count for count in texts if count] == [19, 1]  # the last one comes with the end
    assert "".join(event["choices"][0]["text"] for event in events) == "x" * 20
