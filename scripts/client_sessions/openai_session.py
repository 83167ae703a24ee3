"""A session of OpenAI's Python client: url."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import openai

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: Any = [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}]

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="key")
talk: list[Any] = [{"role": "user", "content": "What does note.txt say?"}]
while True:
    with client.chat.completions.stream(model="toy", messages=talk, tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    talk.append(message.to_dict())
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        text = Path(json.loads(call.function.arguments)["path"]).read_text()
        talk.append({"role": "tool", "tool_call_id": call.id, "content": text})
print(message.content)
