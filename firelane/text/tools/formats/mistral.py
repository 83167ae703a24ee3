"""Mistral: [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], and since its 2025 tokenizers
[TOOL_CALLS]name[ARGS]{...}, repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from firelane.text.tools.call_rules import (
    TokenOf,
    inline_arguments,
    mark_symbol,
    quoted,
    repeated,
    tool_rules,
)
from firelane.text.tools.family import Called, Family, named_json, nine_letters
from firelane.text.tools.json_calls.json_call import read_call, read_list, stream_value
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, char, match, skip_space, until
from firelane.text.tools.tool import Tool

CALLS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"
_HEAD = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_NO_HEAD = re.compile(r"[^\s\w.\-\[\]]")


class Mistral(Family):
    """names_first: the form of the calls that the model writes, and that are forced; both are read."""

    name = "mistral"
    opening = CALLS
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
                read = yield from read_list(buffer, at)
            elif first == "{":
                read = yield from read_call(buffer, at)
            else:
                read = yield from self._named(buffer)
            if not read:
                buffer.content(buffer.take(len(CALLS)))

    def _named(self, buffer: StreamBuffer) -> Reading[bool]:
        head = yield from match(buffer, _HEAD, len(CALLS), _NO_HEAD)
        if head is None:
            return False
        buffer.take(head.end())
        buffer.start_call(head[1])
        yield from stream_value(buffer)
        return True

    def written(self, calls: Sequence[Called]) -> str:
        if self._names_first:
            return "".join(
                f"{CALLS}{name}{ARGS}{json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls
            )
        return f"{CALLS} [{', '.join(map(named_json, calls))}]"

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        mark, args = mark_symbol(CALLS, token_of), mark_symbol(ARGS, token_of)
        if self._names_first:
            calls = f"calls: {repeated(f'{mark} block', '', parallel=parallel)}\nblock: call\n"
            return calls + tool_rules(
                tools, lambda tool: f"{quoted(tool.name)} {args} {inline_arguments(tool)}"
            )

        def call(tool: Tool) -> str:
            head = quoted(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
            return f"{head} {inline_arguments(tool)} {quoted('}')}"

        listed = repeated("call", quoted(", "), parallel=parallel)
        return f'calls: {mark} block\nblock: " [" {listed} "]"\n' + tool_rules(tools, call)
