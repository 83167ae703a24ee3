"""A session of Ollama's Python client: url."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ollama

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: Any = [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}]

client = ollama.Client(host=sys.argv[1])
talk: list[Any] = [{"role": "user", "content": "What does note.txt say?"}]
while True:
    text, calls = "", []
    for piece in client.chat("toy", talk, tools=TOOLS, stream=True):
        text += piece.message.content or ""
        calls += piece.message.tool_calls or ()
    talk.append({"role": "assistant", "content": text, "tool_calls": calls})
    if not calls:
        break
    for call in calls:
        result = Path(call.function.arguments["path"]).read_text()
        talk.append({"role": "tool", "tool_name": call.function.name, "content": result})
print(text)
