"""What tests of Ollama's API share."""

from __future__ import annotations

import array
import json
from typing import Any

from service import Service

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell it", "parameters": SCHEMA},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TAUGHT = (
    "{%- if tools %}<|system|>{{ tools | tojson }}\n{% endif %}"
    "{%- for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>"
    "{%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{%- if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endif %}{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.id }}:{{ c.function.arguments.city }}"
    "{% endfor %}\n"
    "{%- endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
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
    """What is said of an error in Ollama's form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    return body["error"]


def prompt(service: Service) -> str:
    ids = array.array("i", service.engine.submitted[-1].prompt).tolist()
    return service.core.decode(ids, skip_special_tokens=False)


def timeless(answer: Any) -> Any:
    """Without its times, which are there and plausible."""
    assert answer["created_at"].endswith("Z")
    assert answer["total_duration"] >= answer["eval_duration"] > 0
    assert all(answer[name] >= 0 for name in DURATIONS)
    return {name: value for name, value in answer.items() if name not in {*DURATIONS, "created_at"}}
