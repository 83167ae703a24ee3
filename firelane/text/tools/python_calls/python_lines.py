"""Calls as Python writes them, each on a line of its own, between marks: OLMo 3's <function_calls>."""

from __future__ import annotations

from collections.abc import Sequence

from firelane.text.tools.call_rules import TokenOf, mark_symbol, quoted, repeated, tool_rules
from firelane.text.tools.family import Called, Family
from firelane.text.tools.python_calls.python_rules import python_arguments
from firelane.text.tools.python_calls.pythonic import python_call, read_python_call
from firelane.text.tools.raw_text import RuleWriter
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, skip_space, until
from firelane.text.tools.tool import Tool

OLMO3 = ("<function_calls>", "</function_calls>")


class PythonLines(Family):
    """A family that writes calls between these marks."""

    def __init__(self, name: str, opening: str, closing: str) -> None:
        self.name = name
        self.opening = opening
        self.delimiters = (opening, closing)
        self._close = closing

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        while mark := (yield from until(buffer, (self.opening,), buffer.content, trim=True)):
            at = yield from skip_space(buffer, len(mark))
            if not (yield from read_python_call(buffer, at)):
                buffer.content(buffer.take(len(mark)))
                continue
            at = yield from skip_space(buffer, 0)
            while (yield from read_python_call(buffer, at)):
                at = yield from skip_space(buffer, 0)
            if (yield from begins(buffer, at, self._close)):
                buffer.take(at + len(self._close))

    def written(self, calls: Sequence[Called]) -> str:
        return "\n".join((self.opening, *map(python_call, calls), self._close))

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        writer = RuleWriter("part")

        def call(tool: Tool) -> str:
            return f"{quoted(tool.name + '(')} {python_arguments(tool, writer)} {quoted(')')}"

        first, last = (mark_symbol(mark, token_of) for mark in self.delimiters)
        line = quoted("\n")
        listed = repeated("call", line, parallel=parallel)
        calls = f"calls: {first} block\nblock: {line}? {listed} {line}? {last}\n"
        return calls + tool_rules(tools, call) + writer.text
