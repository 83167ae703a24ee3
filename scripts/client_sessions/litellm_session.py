"""A session of LiteLLM: url."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import litellm

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: Any = [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}]

talk: list[Any] = [{"role": "user", "content": "What does note.txt say?"}]
while True:
    answer: Any = litellm.completion(
        model="openai/toy", api_base=f"{sys.argv[1]}/v1", api_key="key", messages=talk, tools=TOOLS
    )
    message = answer.choices[0].message
    talk.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        text = Path(json.loads(call.function.arguments)["path"]).read_text()
        talk.append({"role": "tool", "tool_call_id": call.id, "content": text})
print(message.content)
