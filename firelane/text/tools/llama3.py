"""Llama 3.1 and later: the whole answer is {"name": ..., "parameters": {...}}, several of them parted by
semicolons; some models put <|python_tag|> before it.
"""

from __future__ import annotations

import json
from typing import Any, cast

from firelane.text.constraints import single_line
from firelane.text.tools.family import TokenOf, calls_rules, openai_id
from firelane.text.tools.json_call import read_call
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, char, skip_space, until
from firelane.text.tools.tool import Tool

MARK = "<|python_tag|>"


class Llama3Json:
    name = "llama3_json"
    delimiters = (MARK,)

    def new_id(self) -> str:
        return openai_id()

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        at = yield from skip_space(buffer, 0)
        if (yield from read_call(buffer, at, known_only=True)):  # without a mark, only its name tells a call
            yield from self._more(buffer)
        while (yield from until(buffer, (MARK,), buffer.content, trim=True)):
            at = yield from skip_space(buffer, len(MARK))
            if (yield from read_call(buffer, at)):
                yield from self._more(buffer)
            else:
                buffer.content(buffer.take(len(MARK)))

    def _more(self, buffer: StreamBuffer) -> Reading[None]:
        while True:
            at = yield from skip_space(buffer, 0)
            if (yield from char(buffer, at)) != ";":
                return
            at = yield from skip_space(buffer, at + 1)
            if not (yield from read_call(buffer, at, known_only=True)):
                return

    def rules(self, tools: list[Tool], token_of: TokenOf, *, parallel: bool) -> str:  # noqa: ARG002
        """One call, as the family's templates refuse messages with more. It is told as a schema, not as text
        around one: beside another schema (the answer's format), llguidance reads what both begin with only
        if both are schemas.
        """
        return calls_rules(tools, "call", lambda tool: f"%json {json.dumps(single_line(_call_schema(tool)))}")


def _call_schema(tool: Tool) -> dict[str, Any]:
    parameters = _moved(tool.schema(), "#/properties/parameters")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, root: str) -> Any:
    """The schema for a place inside another one: references to its own root lead to `root`."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, root) for key, value in cast(dict[str, Any], schema).items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = root + target[1:]
    return moved
