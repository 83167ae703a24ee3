"""Hermes 2 Pro, Qwen 2.5 and Qwen 3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

import json
from collections.abc import Sequence

from firelane.text.tools.call_rules import (
    TokenOf,
    inline_arguments,
    mark_symbol,
    quoted,
    repeated,
    tool_rules,
)
from firelane.text.tools.family import Called, Family, named_json
from firelane.text.tools.json_calls.json_call import read_call
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, skip_marks, take_marks, until
from firelane.text.tools.tool import Tool

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class Hermes(Family):
    name = "hermes"
    opening = OPEN
    delimiters = (OPEN, CLOSE)

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        while (yield from until(buffer, (OPEN,), buffer.content, trim=True)):
            at = yield from skip_marks(buffer, len(OPEN), OPEN)
            if not (yield from read_call(buffer, at)):
                buffer.content(buffer.take(len(OPEN)))
                continue
            yield from take_marks(buffer, CLOSE)

    def written(self, calls: Sequence[Called]) -> str:
        return "\n".join(f"{OPEN}\n{named_json(called)}\n{CLOSE}" for called in calls)

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        tail = quoted("}\n")

        def call(tool: Tool) -> str:
            head = quoted(f'\n{{"name": {json.dumps(tool.name)}, "arguments": ')
            return f"{head} {inline_arguments(tool)} {tail}"

        calls = repeated(f"{mark_symbol(OPEN, token_of)} block", quoted("\n"), parallel=parallel)
        block = f"calls: {calls}\nblock: call {mark_symbol(CLOSE, token_of)}\n"
        return block + tool_rules(tools, call)
