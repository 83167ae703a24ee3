"""Gemma 4: <|tool_call>call:f{k:<|"|>v<|"|>,n:1}<tool_call|>. Keys and strings have no JSON quotes, and
strings no escapes: what is given out is made JSON as it comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from firelane.text.tools.call_rules import TokenOf, repeated, symbols, tool_rules
from firelane.text.tools.family import Called, Family
from firelane.text.tools.formats.gemma4_rules import Gemma4Values
from firelane.text.tools.json_calls.json_call import ValueEnd
from firelane.text.tools.parameters import as_json, quoted_text, text_in_json
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, char, match, skip_space, until
from firelane.text.tools.tool import Tool

OPEN = "<|tool_call>"
CLOSE = "<tool_call|>"
QUOTE = '<|"|>'
RESPONSE = "<|tool_response>"
MAX_DEPTH = 64
_HEAD = re.compile(r"\s*call:\s*([^\s<>{}:]+)\s*(?=\{)")
_NO_HEAD = re.compile(r"[{}<>]")
_NAME = r'[^\s,:{}\[\]"<>]'
_KEY = re.compile(rf"\s*(?:{re.escape(QUOTE)}({_NAME}*){re.escape(QUOTE)}|\"({_NAME}*)\"|({_NAME}+))\s*:")
_NO_KEY = re.compile(r"[,:{}\[\]]")
_SCALAR_END = re.compile(r"[,}\]\n]")
_NOT_STRING = frozenset({"null", "boolean", "number", "array", "object"})


class Gemma4(Family):
    name = "gemma4"
    opening = OPEN
    delimiters = (OPEN, CLOSE, QUOTE)
    stops = (RESPONSE,)

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        while (yield from until(buffer, (OPEN,), buffer.content, trim=True)):
            head = yield from match(buffer, _HEAD, len(OPEN), _NO_HEAD)
            if head is None:
                buffer.content(buffer.take(len(OPEN)))
                continue
            buffer.take(head.end())
            buffer.start_call(head[1])
            if (yield from _value(buffer, 0)):
                buffer.end_call()
            at = yield from skip_space(buffer, 0)
            if (yield from begins(buffer, at, CLOSE)):
                buffer.take(at + len(CLOSE))

    def written(self, calls: Sequence[Called]) -> str:
        return "".join(f"{OPEN}call:{name}{_written(arguments)}{CLOSE}" for name, arguments in calls)

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        values = Gemma4Values(self.delimiters, QUOTE, token_of)
        opened = f"{symbols(OPEN, self.delimiters, token_of)} block"
        calls = f"calls: {repeated(opened, '', parallel=parallel)}\n"
        block = f"block: call {symbols(CLOSE, self.delimiters, token_of)}\n"
        return calls + block + tool_rules(tools, values.call) + values.text


def _written(value: Any) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value).items()
        return f"{{{','.join(f'{key}:{_written(one)}' for key, one in fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, cast(list[Any], value)))}]"
    return json.dumps(value)


def _value(buffer: StreamBuffer, depth: int) -> Reading[bool]:
    """Give out the value at hand as JSON. False where it is not complete, or not of the format."""
    at = yield from skip_space(buffer, 0)
    buffer.take(at)
    if (yield from begins(buffer, 0, QUOTE)):
        return (yield from _string(buffer))
    first = yield from char(buffer, 0)
    if first == "{" and depth < MAX_DEPTH:
        return (yield from _items(buffer, "}", depth + 1))
    if first == "[" and depth < MAX_DEPTH:
        return (yield from _items(buffer, "]", depth + 1))
    return (yield from (_json_string(buffer) if first == '"' else _scalar(buffer)))


def _string(buffer: StreamBuffer) -> Reading[bool]:
    buffer.take(len(QUOTE))
    buffer.arguments('"')
    mark = yield from until(buffer, (QUOTE,), lambda text: buffer.arguments(text_in_json(text)))
    buffer.take(len(mark))
    buffer.arguments('"' if mark else "")
    return bool(mark)


def _json_string(buffer: StreamBuffer) -> Reading[bool]:
    """A string in JSON's quotes, which the model writes at times."""
    end, pieces = ValueEnd(), list[str]()
    while (size := end.feed(buffer.text)) is None:
        pieces.append(buffer.take(len(buffer.text)))
        if buffer.ended:
            buffer.arguments("".join(pieces))
            return False
        yield
    buffer.arguments(as_json("".join(pieces) + buffer.take(size), frozenset({"object"})))
    return True


def _scalar(buffer: StreamBuffer) -> Reading[bool]:
    pieces: list[str] = []
    while (found := _SCALAR_END.search(buffer.text)) is None:
        pieces.append(buffer.take(len(buffer.text)))
        if buffer.ended:
            buffer.arguments("".join(pieces))
            return False
        yield
    text = "".join(pieces) + buffer.take(found.start())
    if not text.strip():
        return False
    buffer.arguments(as_json(text.strip(), _NOT_STRING))
    return True


def _items(buffer: StreamBuffer, close: str, depth: int) -> Reading[bool]:
    """The items of an object or an array, from its bracket to `close`."""
    buffer.arguments(buffer.take(1))
    before = ""
    while True:
        at = yield from skip_space(buffer, 0)
        after = yield from char(buffer, at)
        if after == close:
            buffer.take(at + 1)
            buffer.arguments(close)
            return True
        if before:
            if after != ",":
                return False
            buffer.take(at + 1)
            at = yield from skip_space(buffer, 0)
            if (yield from char(buffer, at)) == close:
                continue
        if not (yield from _item(buffer, before, keyed=close == "}", depth=depth)):
            return False
        before = ", "


def _item(buffer: StreamBuffer, before: str, *, keyed: bool, depth: int) -> Reading[bool]:
    if not keyed:
        buffer.arguments(before)
        return (yield from _value(buffer, depth))
    key = yield from match(buffer, _KEY, 0, _NO_KEY)
    if key is None:
        return False
    buffer.take(key.end())
    name = next(group for group in key.groups() if group is not None)
    buffer.arguments(f"{before}{quoted_text(name)}: ")
    return (yield from _value(buffer, depth))
