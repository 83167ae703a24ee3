"""Hostile requests of the APIs besides OpenAI's chat and completions: what only they have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.gateway.hostile_cases import Case, case
from tests.gateway.hostile_fields import (
    GOOD,
    MESSAGES,
    NOT_NUMBERS,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OLLAMA_OPTIONS,
    OLLAMA_PATHS,
    RESPONSES,
    USER,
)
from tests.gateway.hostile_grammars import EITHER, REFUSED, SCHEMAS, TAKEN


def items() -> Iterator[Case]:
    """Yield cases of /v1/responses."""
    output = {"type": "function_call_output", "call_id": "c", "output": "x"}
    taken = ("call of text", "status", "encrypted")  # history is taken as it is
    odd: dict[str, Any] = {
        "output without call": [output],
        "call of text": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "x"}],
        "call without name": [{"type": "function_call", "call_id": "c", "arguments": "{}"}],
        "image": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        "file": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}],
        "reference": [{"type": "item_reference", "id": "msg_1"}],
        "status": [{"role": "user", "content": "x", "status": "lost"}],
        "role": [{"role": "tool", "content": "x"}],
        "encrypted": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}],
        "many": [{"role": "user", "content": "x"}] * 70_000,
    }
    for name, value in odd.items():
        right = TAKEN if name in taken else REFUSED | {404, 413}
        yield case(RESPONSES, f"items: {name}", GOOD[RESPONSES] | {"input": value}, right)


def blocks() -> Iterator[Case]:
    """Yield cases of /v1/messages and of /v1/messages/count_tokens."""
    used = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    deep: Any = "x"
    for _ in range(50):
        deep = [{"type": "tool_result", "tool_use_id": "a", "content": deep}]
    odd: dict[str, tuple[Any, frozenset[int]]] = {
        "image": ([{"type": "image", "source": {}}], REFUSED),
        "result of nothing": ([{"type": "tool_result", "tool_use_id": "a", "content": "x"}], REFUSED),
        "results within": (deep, REFUSED),
        "call of a user": ([used], REFUSED),
        "no text": ([{"type": "text"}], REFUSED),
        "odd type": ([{"type": "\u202e" * 500}], REFUSED),
        "no blocks": ([], EITHER),
        "many": ([{"type": "text", "text": "x"}] * 70_000, REFUSED | {413}),
    }
    for name, (content, right) in odd.items():
        talk = {"messages": [{"role": "user", "content": content}]}
        yield case(MESSAGES, f"blocks: {name}", GOOD[MESSAGES] | talk, right)
        yield case(f"{MESSAGES}/count_tokens", f"blocks: {name}", talk, right | {200})
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant")] * 30_000
    yield case(MESSAGES, "many turns", GOOD[MESSAGES] | {"messages": turns}, REFUSED | {413})
    same = [{"role": "user", "content": "x" * 40}] * 60_000
    yield case(MESSAGES, "many of one role", GOOD[MESSAGES] | {"messages": same}, REFUSED | {413})


def ollama() -> Iterator[Case]:
    """Yield cases of Ollama's API."""
    yield from _ollama_options()
    yield from _ollama_messages()
    yield from _ollama_paths()


def _ollama_options() -> Iterator[Case]:
    for path in (OLLAMA_CHAT, OLLAMA_GENERATE):
        for name, values in OLLAMA_OPTIONS.items():
            not_numbers = [] if name == "stop" else [value for value in NOT_NUMBERS if value is not True]
            for value in (*values, *not_numbers):
                yield case(path, f"options.{name}={value!r}"[:60], GOOD[path] | {"options": {name: value}})


def _ollama_messages() -> Iterator[Case]:
    deep: Any = {}
    for _ in range(400):
        deep = {"a": deep}
    call = {"function": {"name": "f", "arguments": {}}}
    odd: dict[str, tuple[Any, frozenset[int]]] = {
        "images": ([{"role": "user", "content": "x", "images": ["aGk="]}], REFUSED),
        "users call": ([{"role": "user", "content": "x", "tool_calls": [call]}], REFUSED),
        "call of text": ([{"role": "assistant", "tool_calls": [call | {"function": "f"}]}], REFUSED),
        "call of list": (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": []}}]}],
            TAKEN,
        ),
        "deep arguments": (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": deep}}]}],
            EITHER,
        ),
        "many calls": ([{"role": "assistant", "tool_calls": [call] * 1025}], REFUSED),
        "tool alone": ([{"role": "tool", "content": "x"}], EITHER),
        "tool of nothing": ([{"role": "tool", "content": "x", "tool_name": "\u202e" * 500}], EITHER),
        "no content": ([*USER, {"role": "assistant"}], EITHER),
        "many": (USER * 70_000, REFUSED | {413}),
    }
    for name, (value, right) in odd.items():
        yield case(OLLAMA_CHAT, f"messages: {name}", GOOD[OLLAMA_CHAT] | {"messages": value}, right)
    for name, (schema, right) in SCHEMAS.items():
        yield case(OLLAMA_CHAT, f"schema {name}", GOOD[OLLAMA_CHAT] | {"format": schema}, right)


def _ollama_paths() -> Iterator[Case]:
    for path in OLLAMA_PATHS:
        yield case(path, "GET", b"", frozenset({405}), method="GET")
    for method, path in (
        ("POST", "/api/pull"),
        ("POST", "/api/create"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:00"),
    ):
        yield case(path, method, b"\0" * 1000, method=method)
    for path in ("/api/show", "/api/embeddings"):
        for body in (b"", b"[]", b'{"model": 1}', b'{"model": "none"}', b'{"model": "toy", "x": 1}'):
            yield case(path, repr(body), body, REFUSED | {404})
    yield case("/api/", "GET", b"", frozenset({404}), method="GET")
