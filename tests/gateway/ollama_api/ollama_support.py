"""Helpers that tests of Ollama's API share."""

from __future__ import annotations

import json
from typing import Any

from service import Service

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell it", "parameters": SCHEMA},
}
DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}


def user(text: str = "hi") -> list[Any]:
    return [{"role": "user", "content": text}]


def post(service: Service, path: str, **body: Any) -> Any:
    return service.http.post(path, json={"model": "toy", **body})


def chat(service: Service, **fields: Any) -> Any:
    """The answer in one piece, of a question unless there are other messages."""
    return told(post(service, "/api/chat", **{"stream": False, "messages": user(), **fields}))


def generate(service: Service, **fields: Any) -> Any:
    return told(post(service, "/api/generate", **{"stream": False, "prompt": "hi", **fields}))


def told(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def lines(answer: Any) -> list[Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.split("\n")[:-1]]


def refused(answer: Any, status: int = 400) -> str:
    """Check that an answer is an error in Ollama's form; return its message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    return body["error"]


def timeless(answer: Any) -> Any:
    """Without its times, which are there and plausible."""
    assert answer["created_at"].endswith("Z")
    assert answer["total_duration"] >= answer["eval_duration"] > 0
    assert all(answer[name] >= 0 for name in DURATIONS)
    return {name: value for name, value in answer.items() if name not in {*DURATIONS, "created_at"}}
