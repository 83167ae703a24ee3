"""Calls as JSON objects behind a mark, without a list: several between <tool_calls> and </tool_calls>
(MiniMax M1), one behind <|function_call|> or in a message of its own (GigaChat 3).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from firelane.text.tools.call_rules import (
    TokenOf,
    inline_arguments,
    quoted,
    repeated,
    symbols,
    tool_rules,
)
from firelane.text.tools.family import Called, Family, named_json
from firelane.text.tools.json_calls.json_call import read_call
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, skip_space, until
from firelane.text.tools.tool import Tool

MINIMAX_M1 = ("<tool_calls>", "</tool_calls>")
GIGACHAT31 = "<|function_call|>"
GIGACHAT3 = "<|message_sep|>\n\nfunction call<|role_sep|>\n"


class JsonLines(Family):
    """closing: what ends a block of calls; "": a block is one call, and an answer one block. tokens: special
    tokens within the marks.
    """

    def __init__(self, name: str, opening: str, closing: str = "", tokens: tuple[str, ...] = ()) -> None:
        self.name = name
        self.opening = opening
        self.delimiters = tokens or tuple(filter(None, (opening, closing)))
        self._close = closing

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        while mark := (yield from until(buffer, (self.opening,), buffer.content, trim=True)):
            at = yield from skip_space(buffer, len(mark))
            if not (yield from read_call(buffer, at)):
                buffer.content(buffer.take(len(mark)))
                continue
            at = yield from skip_space(buffer, 0)
            while self._close and (yield from read_call(buffer, at)):
                at = yield from skip_space(buffer, 0)
            if self._close and (yield from begins(buffer, at, self._close)):
                buffer.take(at + len(self._close))

    def written(self, calls: Sequence[Called]) -> str:
        lines = [named_json(called) for called in calls]
        if not self._close:
            return "\n".join(f"{self.opening}{line}" for line in lines)
        return "\n".join((self.opening, *lines, self._close))

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        def call(tool: Tool) -> str:
            head = quoted(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
            return f"{head} {inline_arguments(tool)} {quoted('}')}"

        line = quoted("\n")
        block = "call"
        if self._close:
            listed = repeated("call", line, parallel=parallel)
            block = f"{line} {listed} {line} {symbols(self._close, self.delimiters, token_of)}"
        calls = f"calls: {symbols(self.opening, self.delimiters, token_of)} block\nblock: {block}\n"
        return calls + tool_rules(tools, call)
