"""Calls as a list of Python's: [f(a=1, b="x"), g()]. Llama 4, which also writes JSON, and puts
<|python_start|> before either; LFM2, between marks of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from firelane.text.tools.call_rules import (
    TokenOf,
    held_tools,
    mark_symbol,
    quoted,
    repeated,
    tool_rules,
    unmarked_start,
)
from firelane.text.tools.family import Called, Family
from firelane.text.tools.json_calls.json_call import read_call
from firelane.text.tools.parameters import quoted_text
from firelane.text.tools.python_calls.python_rules import python_arguments
from firelane.text.tools.python_value import LiteralEnd, python_as_json
from firelane.text.tools.raw_text import RuleWriter
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, char, match, skip_space, until
from firelane.text.tools.tool import Tool

_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(")
_NO_NAME = re.compile(r"[^\s\w.(-]")
_KEY = re.compile(r"\s*(?:([^\W\d]\w*)\s*=|\))")
_NO_KEY = re.compile(r"[^\s\w=)]")


def python_call(called: Called) -> str:
    """A call as Python writes it."""
    return f"{called[0]}({', '.join(f'{key}={value!r}' for key, value in called[1].items())})"


class Pythonic(Family):
    """opening, closing: marks around the list. forced: whether the model writes the opening mark; if not, the
    list alone tells a call, where it is the text's beginning and its first name is known.
    """

    def __init__(self, name: str, opening: str, closing: str, *, marked: bool) -> None:
        self.name = name
        self._open, self._close, self._marked = opening, closing, marked
        self.delimiters = (opening, closing)
        self.opening = f"{opening}[" if marked else ""

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        at = yield from skip_space(buffer, 0)
        yield from self._calls(buffer, at, known_only=True)
        while mark := (yield from until(buffer, (self._open,), buffer.content, trim=True)):
            at = yield from skip_space(buffer, len(mark))
            if not (yield from self._calls(buffer, at)):
                buffer.content(buffer.take(len(mark)))

    def _calls(self, buffer: StreamBuffer, at: int, *, known_only: bool = False) -> Reading[bool]:
        first = yield from char(buffer, at)
        if first == "[":
            read = yield from _list(buffer, at + 1, known_only=known_only)
        else:
            read = first == "{" and (yield from read_call(buffer, at, known_only=known_only))
        if read:
            at = yield from skip_space(buffer, 0)
            if (yield from begins(buffer, at, self._close)):
                buffer.take(at + len(self._close))
        return read

    def written(self, calls: Sequence[Called]) -> str:
        listed = f"[{', '.join(map(python_call, calls))}]"
        return f"{self._open}{listed}{self._close}" if self._marked else listed

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        writer = RuleWriter("part")

        def call(tool: Tool) -> str:
            return f"{quoted(tool.name + '(')} {python_arguments(tool, writer)} {quoted(')')}"

        listed = repeated("call", quoted(", "), parallel=parallel)
        if self._marked:
            first, last = mark_symbol(self._open, token_of), mark_symbol(self._close, token_of)
            calls = f'calls: {first} "[" block\nblock: {listed} "]" {last}\n'
        else:
            calls = f'calls: "[" {listed} "]"\n'
        return calls + tool_rules(tools, call) + writer.text

    def free_rules(
        self, tools: Sequence[Tool], token_of: TokenOf, reasoning: Sequence[str], *, parallel: bool
    ) -> str:
        if self._marked:
            return super().free_rules(tools, token_of, reasoning, parallel=parallel)
        start = unmarked_start("[", reasoning, token_of)
        return start + self.rules(held_tools(tools), token_of, parallel=parallel)


def _list(buffer: StreamBuffer, at: int, *, known_only: bool) -> Reading[bool]:
    """Read calls up to the list's bracket. False, with nothing taken, where it does not begin with one."""
    if not (yield from read_python_call(buffer, at, known_only=known_only)):
        return False
    while True:
        at = yield from skip_space(buffer, 0)
        after = yield from char(buffer, at)
        if after == "]":
            buffer.take(at + 1)
        if after != ",":
            return True
        if not (yield from read_python_call(buffer, at + 1, known_only=False)):
            return True


def read_python_call(buffer: StreamBuffer, at: int, *, known_only: bool = False) -> Reading[bool]:
    """Read `f(a=1)`. False, with nothing taken, where none begins there."""
    name = yield from match(buffer, _NAME, at, _NO_NAME)
    if name is None or (known_only and name[1] not in buffer.tools):
        return False
    key = yield from match(buffer, _KEY, name.end(), _NO_KEY)
    if key is None:
        return False
    buffer.take(key.end())
    buffer.start_call(name[1])
    before = "{"
    while key is not None and key[1]:
        buffer.arguments(f"{before}{quoted_text(key[1])}: ")
        before = ", "
        after = yield from _value(buffer)
        if not after:
            return True  # the text ends within the call
        key = None
        if after == ",":
            key = yield from match(buffer, _KEY, 0, _NO_KEY)
            buffer.take(0 if key is None else key.end())
            if key is None and buffer.ended:
                return True
    buffer.arguments("{}" if before == "{" else "}")
    buffer.end_call()
    return True


def _value(buffer: StreamBuffer) -> Reading[str]:
    """Give out a value as JSON, once it is whole, and take what ends it, which is returned; "" where the text
    ends before.
    """
    end, pieces = LiteralEnd(), list[str]()
    while (at := end.feed(buffer.text)) is None:
        pieces.append(buffer.take(len(buffer.text)))
        if buffer.ended:
            buffer.arguments("".join(pieces))
            return ""
        yield
    pieces.append(buffer.take(at))
    buffer.arguments(python_as_json("".join(pieces)))
    return buffer.take(1)
