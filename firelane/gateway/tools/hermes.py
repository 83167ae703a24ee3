"""Hermes 2 Pro, Qwen 2.5 and Qwen 3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

import json

from firelane.gateway.tools.family import (
    TokenOf,
    calls_rules,
    inline_arguments,
    mark_symbol,
    openai_id,
    quoted,
    repeated,
)
from firelane.gateway.tools.json_call import read_call
from firelane.gateway.tools.tape import Reading, Tape, begins, skip_space, until
from firelane.gateway.tools.tool import Tool

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class Hermes:
    name = "hermes"
    marks = (OPEN, CLOSE)

    def new_id(self) -> str:
        return openai_id()

    def parse(self, tape: Tape) -> Reading[None]:
        while (yield from until(tape, (OPEN,), tape.content, trim=True)):
            at = yield from skip_space(tape, len(OPEN))
            if not (yield from read_call(tape, at)):
                tape.content(tape.take(len(OPEN)))
                continue
            at = yield from skip_space(tape, 0)
            if (yield from begins(tape, at, CLOSE)):
                tape.take(at + len(CLOSE))

    def rules(self, tools: list[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        first, last = mark_symbol(OPEN, token_of), mark_symbol(CLOSE, token_of)
        tail = quoted("}\n")

        def call(tool: Tool) -> str:
            head = quoted(f'\n{{"name": {json.dumps(tool.name)}, "arguments": ')
            return f"{first} {head} {inline_arguments(tool)} {tail} {last}"

        return calls_rules(tools, repeated(quoted("\n"), parallel=parallel), call)
