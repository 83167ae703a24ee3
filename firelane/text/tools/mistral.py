"""Mistral: [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], and since its 2025 tokenizers
[TOOL_CALLS]name[ARGS]{...}, repeated.
"""

from __future__ import annotations

import json
import re

from firelane.text.tools.family import (
    MAX_FORCED_CALLS,
    TokenOf,
    calls_rules,
    inline_arguments,
    mark_symbol,
    nine_letters,
    quoted,
    repeated,
)
from firelane.text.tools.json_call import read_call, stream_value
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, char, skip_space, until
from firelane.text.tools.tool import Tool

CALLS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"
MAX_HEAD_CHARS = 256
_HEAD = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_HEAD_CHARS = re.compile(r"[\s\w.\-\[\]]*")


class Mistral:
    """names_first: the form of the calls that the model writes, and that are forced; both are read."""

    name = "mistral"
    delimiters = (CALLS, CALL_ID, ARGS)

    def __init__(self, *, names_first: bool = False) -> None:
        self._names_first = names_first

    def new_id(self) -> str:
        return nine_letters()

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        while (yield from until(buffer, (CALLS,), buffer.content, trim=True)):
            at = yield from skip_space(buffer, len(CALLS))
            first = yield from char(buffer, at)
            if first == "[":
                read = yield from self._list(buffer, at)
            elif first == "{":
                read = yield from read_call(buffer, at)
            else:
                read = yield from self._named(buffer)
            if not read:
                buffer.content(buffer.take(len(CALLS)))

    def _list(self, buffer: StreamBuffer, at: int) -> Reading[bool]:
        at = yield from skip_space(buffer, at + 1)
        if not (yield from read_call(buffer, at)):
            return False
        while True:
            at = yield from skip_space(buffer, 0)
            after = yield from char(buffer, at)
            if after == "]":
                buffer.take(at + 1)
            if after != ",":
                return True
            at = yield from skip_space(buffer, at + 1)
            if not (yield from read_call(buffer, at)):
                return True

    def _named(self, buffer: StreamBuffer) -> Reading[bool]:
        while (found := _HEAD.match(buffer.text, len(CALLS))) is None:
            head = _HEAD_CHARS.match(buffer.text, len(CALLS))
            whole = head is not None and head.end() == len(buffer.text)
            if buffer.ended or not whole or len(buffer.text) > MAX_HEAD_CHARS:
                return False
            yield
        if found.end() > MAX_HEAD_CHARS:
            return False
        buffer.take(found.end())
        buffer.start_call(found[1])
        yield from stream_value(buffer)
        return True

    def rules(self, tools: list[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        mark, args = mark_symbol(CALLS, token_of), mark_symbol(ARGS, token_of)
        if self._names_first:
            calls = f"call{{1,{MAX_FORCED_CALLS}}}" if parallel else "call"
            return calls_rules(
                tools, calls, lambda tool: f"{mark} {quoted(tool.name)} {args} {inline_arguments(tool)}"
            )

        def call(tool: Tool) -> str:
            head = quoted(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
            return f"{head} {inline_arguments(tool)} {quoted('}')}"

        calls = repeated(quoted(", "), parallel=parallel)
        return calls_rules(tools, f'{mark} " [" {calls} "]"', call)
