"""Calls in a JSON list behind a word or a mark: functools[{"name": ..., "arguments": {...}}] (Phi-4-mini),
<|tool_call|>[...] (Granite 3), <TOOLCALL>[...]</TOOLCALL> (Nemotron).
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
from firelane.text.tools.family import Called, Family, named_json
from firelane.text.tools.json_calls.json_call import read_list
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, char, skip_space, until
from firelane.text.tools.tool import Tool

PHI4_MINI = "functools"
GRANITE = "<|tool_call|>"
APRIEL = ("[END FINAL RESPONSE]",)
"""Ends an answer behind reasoning."""
NEMOTRON = ("<TOOLCALL>", "</TOOLCALL>")


class JsonList(Family):
    """A family that writes calls behind this mark, and `close` after them. around: as in Family."""

    def __init__(self, name: str, mark: str, close: str = "", around: tuple[str, ...] = ()) -> None:
        self.name = name
        self.around = around
        self.opening = f"{mark}["
        self.delimiters = (mark, close) if close else (mark,)
        self._mark, self._close = mark, close

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        marks = (self._mark, *self.around)
        while mark := (yield from until(buffer, marks, buffer.content, trim=True)):
            if mark in self.around:
                buffer.take(len(mark))
                continue
            at = yield from skip_space(buffer, len(mark))
            listed = (yield from char(buffer, at)) == "["
            if not listed or not (yield from read_list(buffer, at)):
                buffer.content(buffer.take(len(mark)))
            elif self._close:
                at = yield from skip_space(buffer, 0)
                ends = yield from begins(buffer, at, self._close)
                buffer.take(at + len(self._close) if ends else 0)

    def written(self, calls: Sequence[Called]) -> str:
        return f"{self._mark}[{', '.join(map(named_json, calls))}]{self._close}"

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        def call(tool: Tool) -> str:
            head = quoted(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
            return f"{head} {inline_arguments(tool)} {quoted('}')}"

        listed = repeated("call", quoted(", "), parallel=parallel)
        close = mark_symbol(self._close, token_of) if self._close else ""
        calls = f'calls: {mark_symbol(self._mark, token_of)} "[" block\nblock: {listed} "]" {close}\n'
        return calls + tool_rules(tools, call)
