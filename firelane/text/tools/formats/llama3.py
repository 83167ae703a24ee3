"""Llama 3.1 and later: the whole answer is {"name": ..., "parameters": {...}}, several of them parted by
semicolons; some models put <|python_tag|> before it. Llama 4, as its own template shows calls, writes
<|python_start|><|python_end|> before it, or puts it between the two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from firelane.text.schemas.constraints import single_line
from firelane.text.tools.call_rules import TokenOf, held_tools, tool_rules, unmarked_start
from firelane.text.tools.family import Called, Family, named_json
from firelane.text.tools.json_calls.json_call import read_call
from firelane.text.tools.parameters import moved_references
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, char, skip_space, until
from firelane.text.tools.tool import Tool

MARK = "<|python_tag|>"
START, END = "<|python_start|>", "<|python_end|>"


class Llama3Json(Family):
    name = "llama3_json"
    delimiters = (MARK, START, END)

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        at = yield from skip_space(buffer, 0)
        if (yield from read_call(buffer, at, known_only=True)):  # without a mark, only its name tells a call
            yield from self._more(buffer)
        while mark := (yield from until(buffer, (MARK, START), buffer.content, trim=True)):
            at = yield from _behind_end(buffer, len(mark))
            if (yield from read_call(buffer, at)):
                yield from self._more(buffer)
            else:
                buffer.content(buffer.take(len(mark)))

    def _more(self, buffer: StreamBuffer) -> Reading[None]:
        """Read calls that follow one, and the mark that ends them."""
        while True:
            at = yield from skip_space(buffer, 0)
            after = yield from char(buffer, at)
            if after == ";":
                at = yield from skip_space(buffer, at + 1)
            if after not in (";", "{") or not (yield from read_call(buffer, at, known_only=True)):
                break
        at = yield from skip_space(buffer, 0)
        if (yield from begins(buffer, at, END)):
            buffer.take(at + len(END))

    def written(self, calls: Sequence[Called]) -> str:
        return "; ".join(named_json(called, "parameters") for called in calls)

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:  # noqa: ARG002
        """One call, as the family's templates refuse messages with more. It is told as a schema, not as text
        around one: beside another schema (the answer's format), llguidance reads what both begin with only
        if both are schemas.
        """
        return "calls: call\n" + tool_rules(
            tools, lambda tool: f"%json {json.dumps(single_line(call_schema(tool)))}"
        )

    def free_rules(
        self, tools: Sequence[Tool], token_of: TokenOf, reasoning: Sequence[str], *, parallel: bool
    ) -> str:
        start = unmarked_start("{", reasoning, token_of)
        return start + self.rules(held_tools(tools), token_of, parallel=parallel)


def _behind_end(buffer: StreamBuffer, at: int) -> Reading[int]:
    """The place behind a mark that ends what nothing stands in, and behind space."""
    at = yield from skip_space(buffer, at)
    if (yield from begins(buffer, at, END)):
        at = yield from skip_space(buffer, at + len(END))
    return at


def call_schema(tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            "parameters": moved_references(tool.schema(), "#/properties/parameters"),
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
