"""Helpers that tests of /v1/messages share."""

from __future__ import annotations

import json
from typing import Any

from service import Service

TOOL = {
    "name": "weather",
    "description": "Tell it",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def ask(service: Service, *messages: Any, **fields: Any) -> Any:
    """The answer to a question, or to a conversation."""
    body = {"model": "toy", "max_tokens": 100, "messages": turns(*messages), **fields}
    return service.http.post("/v1/messages", json=body)


def turns(*messages: Any) -> list[Any]:
    """User and assistant by turns."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(messages or ("hi",))]


def told(service: Service, *messages: Any, **fields: Any) -> Any:
    answer = ask(service, *messages, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: Any, status: int, kind: str) -> str:
    """Check that an answer is an error in Anthropic's form; return its message."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == answer.headers["request-id"]
    return body["error"]["message"]


def events(answer: Any) -> list[Any]:
    """Parse the events of a stream, each of which names its kind twice."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    made = []
    for part in answer.text.split("\n\n"):
        if part and not part.startswith(":"):
            kind, data = part.split("\n")
            made.append(json.loads(data.removeprefix("data: ")))
            assert kind == f"event: {made[-1]['type']}"
    return made
