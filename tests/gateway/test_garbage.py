"""A request that has ended leaves no cycle of objects behind: its memory goes at once, not when garbage is
looked for, which is seldom here."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from raw_client import Raw
from service import Service

TIMES = 10
SAY = {"messages": [{"role": "user", "content": "say it"}], "max_tokens": 60}
STREAM = {**SAY, "stream": True}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def post(path: str, body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(),
        len(text),
        text,
    )


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def leave(raw: Raw) -> None:
    """In the middle of a stream."""
    raw.send(post(CHAT, STREAM))
    raw.receive()


def stream(raw: Raw) -> None:
    raw.send(post(CHAT, STREAM))
    while b"[DONE]" not in raw.buffer:
        raw.receive()


def answered(path: str, body: dict[str, Any]) -> Callable[[Raw], None]:
    def ask(raw: Raw) -> None:
        raw.send(post(path, body))
        raw.response()

    return ask


def half_a_body(raw: Raw) -> None:
    raw.send(post(CHAT, SAY)[:-10])


def no_http(raw: Raw) -> None:
    raw.send(b"\x16\x03\x01\r\n\r\n")
    raw.response()


def bad_head(raw: Raw) -> None:
    raw.send(b"GET /version HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n")
    raw.response()


def large_body(raw: Raw) -> None:
    raw.send(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n")
    raw.response()


def pipelined(raw: Raw) -> None:
    raw.send(post(CHAT, SAY) * 3)
    raw.response()


def upgrade(raw: Raw) -> None:
    raw.send(post(CHAT, SAY).replace(b"\r\n", b"\r\nconnection: upgrade\r\nupgrade: h2c\r\n", 1))
    raw.response()


KINDS = {
    "left": leave,
    "stream": stream,
    "chat": answered(CHAT, SAY),
    "refused": answered(CHAT, {**SAY, "n": "x"}),
    "not_there": answered("/v1/nothing", {}),
    "responses": answered(RESPONSES, {"input": "say it", "max_output_tokens": 20}),
    "messages": answered(MESSAGES, {**SAY, "max_tokens": 20}),
    "schema": answered(CHAT, {**SAY, "response_format": SCHEMA}),
    "half_a_body": half_a_body,
    "no_http": no_http,
    "upgrade": upgrade,
    "bad_head": bad_head,
    "large_body": large_body,
    "pipelined": pipelined,
    "several": answered("/v1/completions", {"prompt": "say it", "n": 3, "max_tokens": 20}),
    "ollama": answered("/api/chat", {**SAY, "model": "toy", "stream": False}),
    "ollama_refused": answered("/api/chat", {**SAY, "model": "none"}),
    "messages_refused": answered(MESSAGES, {**SAY, "max_tokens": -1}),
    "tools": answered(CHAT, {**SAY, "tools": [TOOL], "tool_choice": "required"}),
    "tokenize": answered("/tokenize", {"prompt": "say it"}),
}


def garbage_of(ask: Callable[[], None]) -> Counter[str]:
    """Objects in cycles that some calls leave behind, by their types."""
    for _ in range(3):
        ask()
    gc.collect()
    gc.disable()
    try:
        for _ in range(TIMES):
            ask()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return Counter(type(one).__qualname__ for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_an_ended_connection_leaves_no_cycle(service: Service, kind: str) -> None:
    service.text = "hello world " * 5

    def ask() -> None:
        raw = Raw(service)
        KINDS[kind](raw)
        raw.sock.close()
        service.wait_for(lambda: not len(service.gateway._connections))

    assert not garbage_of(ask)
