"""A session of Anthropic's Python client: url."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anthropic

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: Any = [{"name": "read_file", "description": "Read a file", "input_schema": SCHEMA}]

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="key")
talk: list[Any] = [{"role": "user", "content": "What does note.txt say?"}]
while True:
    with client.messages.stream(model="toy", max_tokens=500, messages=talk, tools=TOOLS) as stream:
        message = stream.get_final_message()
    talk.append(message.to_param())
    if message.stop_reason != "tool_use":
        break
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": Path(block.input["path"]).read_text()}
        for block in message.content
        if block.type == "tool_use"
    ]
    talk.append({"role": "user", "content": results})
print(message.content[-1].text)
