"""MiniMax M3: a tag of its own name around each parameter, and around each part of one that is an object or
a list, each tag behind a mark.

    ]<]minimax[>[<tool_call>
    ]<]minimax[>[<invoke name="f">]<]minimax[>[<city>Bern]<]minimax[>[</city>]<]minimax[>[</invoke>
    ]<]minimax[>[</tool_call>

The parts of a list have the name `item`. The schema says what a text is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from firelane.text.tools.argument_schema import argument_schema
from firelane.text.tools.call_rules import TokenOf, repeated, symbols, tool_rules
from firelane.text.tools.family import Called, Family
from firelane.text.tools.formats.minimax_m3_rules import NestedTags
from firelane.text.tools.parameters import (
    STRING,
    Schema,
    as_json,
    field_of,
    items_of,
    kinds,
    quoted_text,
    text_in_json,
)
from firelane.text.tools.stream_buffer import (
    Reading,
    StreamBuffer,
    begins,
    match,
    skip_space,
    take_marks,
    until,
)
from firelane.text.tools.tool import Tool

MARK = "]<]minimax[>["
SECTION = ("<tool_call>", "</tool_call>")
OPEN, CLOSE = f"{MARK}{SECTION[0]}", f"{MARK}{SECTION[1]}"
INVOKE, INVOKED = f'{MARK}<invoke name="', f"{MARK}</invoke>"
ITEM = "item"
MAX_DEPTH = 64
_CALL = re.compile(rf'{re.escape(INVOKE)}([^\s<>"]+)">')
_NO_CALL = re.compile(r'name="[^>]*>')
_TAG = re.compile(rf'{re.escape(MARK)}<([^\s<>/"]+)>')
_NO_TAG = re.compile(rf'{re.escape(MARK)}<[^<>]*[\s/"<>]')
_CONTAINERS = frozenset({"array", "object"})
Place = tuple[Any, Schema]
"""A schema, and the root that its references lead to."""


class MinimaxM3(Family):
    name = "minimax_m3"
    opening = OPEN
    delimiters = (MARK, *SECTION)

    @property
    def openings(self) -> tuple[str, ...]:
        return OPEN, INVOKE

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        while mark := (yield from until(buffer, self.openings, buffer.content, trim=True)):
            at = 0 if mark == INVOKE else (yield from skip_space(buffer, len(mark)))
            if not (yield from _section(buffer, at)):
                buffer.content(buffer.take(len(mark)))

    def written(self, calls: Sequence[Called]) -> str:
        made = [f'{INVOKE}{name}">{_written(arguments)}{INVOKED}\n' for name, arguments in calls]
        return f"{OPEN}\n{''.join(made)}{CLOSE}"

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        def text(said: str) -> str:
            return symbols(said, self.delimiters, token_of)

        made = NestedTags(MARK, self.delimiters, token_of)

        def call(tool: Tool) -> str:
            head, tail = text(f'{INVOKE}{tool.name}">'), text(f"{INVOKED}\n")
            return f"{head} {made.arguments(tool)} {tail}"

        first = text("\n")
        calls = f"calls: {text(OPEN)} block\nblock: {first} {repeated('call', '', parallel=parallel)} "
        return calls + f"{text(CLOSE)}\n" + tool_rules(tools, call) + made.text


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | list):
        return json.dumps(value)
    fields = cast(dict[str, Any], value).items() if isinstance(value, dict) else ()
    items = [(ITEM, one) for one in cast(list[Any], value)] if isinstance(value, list) else fields
    return "".join(f"{MARK}<{name}>{_written(one)}{MARK}</{name}>" for name, one in items)


def _section(buffer: StreamBuffer, at: int) -> Reading[bool]:
    """Calls up to the section's closing tag. False, with nothing taken, where there is none."""
    read = False
    while (yield from begins(buffer, at, INVOKE)):
        head = yield from match(buffer, _CALL, at, _NO_CALL)
        if head is None:
            break
        read = True
        buffer.take(head.end())
        buffer.start_call(head[1])
        tool = buffer.tools.get(head[1])
        schema = (tool and tool.parameters and argument_schema(tool.parameters)) or {}
        buffer.arguments("{")
        if (yield from _parts(buffer, "}", (schema, schema), 0)):
            buffer.end_call()
            yield from take_marks(buffer, INVOKED)
        at = yield from skip_space(buffer, 0)
    if read:
        yield from take_marks(buffer, CLOSE)
    return read


def _tag(buffer: StreamBuffer) -> Reading[re.Match[str] | None]:
    """The opening tag that comes next, not taken; None where something else stands."""
    at = yield from skip_space(buffer, 0)
    if not (yield from begins(buffer, at, f"{MARK}<")):
        return None
    return (yield from match(buffer, _TAG, at, _NO_TAG))


def _parts(buffer: StreamBuffer, close: str, place: Place, depth: int) -> Reading[bool]:
    """Tags with their values, then `close`, as JSON. False where the text ends before. What is no such tag
    is left.
    """
    before = ""
    while (tag := (yield from _tag(buffer))) is not None and (close == "}" or tag[1] == ITEM):
        buffer.take(tag.end())
        buffer.arguments(before if close == "]" else f"{before}{quoted_text(tag[1])}: ")
        part = items_of(*place) if close == "]" else field_of(*place, tag[1])
        if not (yield from _value(buffer, (part, place[1]), f"{MARK}</{tag[1]}>", depth + 1)):
            return False
        before = ", "
    at = yield from skip_space(buffer, 0)
    if not (yield from begins(buffer, at, f"{MARK}</")) and buffer.ended:
        return False
    buffer.arguments(close)
    return True


def _value(buffer: StreamBuffer, place: Place, close: str, depth: int) -> Reading[bool]:
    """A value with its closing tag, given out as JSON. False where the text ends before that."""
    allowed = kinds(*place)
    tag = None if "string" in allowed or depth > MAX_DEPTH else (yield from _tag(buffer))
    if tag is not None:
        is_list = tag[1] == ITEM and ("array" in allowed or "object" not in allowed)
        buffer.arguments("[" if is_list else "{")
        read = yield from _parts(buffer, "]" if is_list else "}", place, depth)
        return read and (yield from _closed(buffer, close))
    if allowed == STRING:
        buffer.arguments('"')
        closed = yield from _text(buffer, close, lambda said: buffer.arguments(text_in_json(said)))
        buffer.arguments('"' if closed else "")
        return closed
    pieces: list[str] = []
    closed = yield from _text(buffer, close, pieces.append)
    text = "".join(pieces)
    buffer.arguments(_as_json(text, allowed) if closed else text)
    return closed


def _text(buffer: StreamBuffer, close: str, give: Callable[[str], None]) -> Reading[bool]:
    """A text up to its closing tag, or, where that is missing, up to the call's."""
    mark = yield from until(buffer, (close, INVOKED), give)
    buffer.take(len(mark) if mark == close else 0)
    return bool(mark)


def _closed(buffer: StreamBuffer, close: str) -> Reading[bool]:
    """Take a closing tag. False where the text ends before; one that is missing is no end."""
    at = yield from skip_space(buffer, 0)
    if (yield from begins(buffer, at, close)):
        buffer.take(at + len(close))
        return True
    return not buffer.ended


def _as_json(text: str, allowed: frozenset[str]) -> str:
    """A text as JSON. allowed: as `kinds` gives them. An object or a list without parts is no text."""
    if text.strip() or not allowed or not allowed <= _CONTAINERS:
        return as_json(text, allowed)
    return "[]" if "array" in allowed else "{}"
