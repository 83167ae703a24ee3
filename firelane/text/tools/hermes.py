"""Hermes 2 Pro, Qwen 2.5 and Qwen 3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

import json

from firelane.text.tools.family import (
    TokenOf,
    calls_rules,
    inline_arguments,
    mark_symbol,
    openai_id,
    quoted,
    repeated,
)
from firelane.text.tools.json_call import read_call
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, skip_space, until
from firelane.text.tools.tool import Tool

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class Hermes:
    name = "hermes"
    delimiters = (OPEN, CLOSE)

    def new_id(self) -> str:
        return openai_id()

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        while (yield from until(buffer, (OPEN,), buffer.content, trim=True)):
            at = yield from skip_space(buffer, len(OPEN))
            if not (yield from read_call(buffer, at)):
                buffer.content(buffer.take(len(OPEN)))
                continue
            at = yield from skip_space(buffer, 0)
            if (yield from begins(buffer, at, CLOSE)):
                buffer.take(at + len(CLOSE))

    def rules(self, tools: list[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        first, last = mark_symbol(OPEN, token_of), mark_symbol(CLOSE, token_of)
        tail = quoted("}\n")

        def call(tool: Tool) -> str:
            head = quoted(f'\n{{"name": {json.dumps(tool.name)}, "arguments": ')
            return f"{first} {head} {inline_arguments(tool)} {tail} {last}"

        return calls_rules(tools, repeated(quoted("\n"), parallel=parallel), call)
