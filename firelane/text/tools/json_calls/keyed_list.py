"""Calls as a list of objects whose one key is the tool's name: <|tools_prefix|>[{"f": {...}}]<|tools_suffix|>
(Apertus).
"""

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
from firelane.text.tools.family import Called, Family
from firelane.text.tools.json_calls.json_call import read_keyed_call
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, char, skip_space, until
from firelane.text.tools.tool import Tool

APERTUS = ("<|tools_prefix|>", "<|tools_suffix|>")


class KeyedList(Family):
    """A family that writes such lists between these marks."""

    def __init__(self, name: str, opening: str, closing: str) -> None:
        self.name = name
        self.opening = f"{opening}["
        self.delimiters = (opening, closing)

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        mark, close = self.delimiters
        while (yield from until(buffer, (mark,), buffer.content, trim=True)):
            at = yield from skip_space(buffer, len(mark))
            at = yield from skip_space(buffer, at + 1)
            if not (yield from read_keyed_call(buffer, at)):
                buffer.content(buffer.take(len(mark)))
                continue
            at = yield from skip_space(buffer, 0)
            while (yield from char(buffer, at)) == ",":
                at = yield from skip_space(buffer, at + 1)
                if not (yield from read_keyed_call(buffer, at)):
                    break
                at = yield from skip_space(buffer, 0)
            if (yield from char(buffer, at)) == "]":
                at = yield from skip_space(buffer, at + 1)
            if (yield from begins(buffer, at, close)):
                buffer.take(at + len(close))

    def written(self, calls: Sequence[Called]) -> str:
        listed = ", ".join(json.dumps({name: said}, ensure_ascii=False) for name, said in calls)
        return f"{self.opening}{listed}]{self.delimiters[1]}"

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        def call(tool: Tool) -> str:
            return f"{quoted(f'{{{json.dumps(tool.name)}: ')} {inline_arguments(tool)} {quoted('}')}"

        mark, close = (mark_symbol(one, token_of) for one in self.delimiters)
        listed = repeated("call", quoted(", "), parallel=parallel)
        return f'calls: {mark} "[" block\nblock: {listed} "]" {close}\n' + tool_rules(tools, call)
