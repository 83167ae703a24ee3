"""Calls written as a JSON object: {"name": "f", "arguments": {...}}.

The arguments go out as they come. Until they begin nothing is given out, so that an object which turns out
to be no call, or whose arguments are no object, can still become content.
"""

from __future__ import annotations

import json
import re
from typing import Any

from firelane.text.tools.json_calls.json_text import JsonText, mended_object
from firelane.text.tools.python_value import LiteralEnd, python_as_json
from firelane.text.tools.stream_buffer import MAX_HEAD_CHARS, Reading, StreamBuffer, char, skip_space

NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")
LABEL_KEYS = frozenset({"id", "call_id", "tool_call_id", "type", "index"})
"""Members of a call that say nothing of its arguments."""
MAX_NAME_CHARS = 256
MAX_EARLY_CHARS = 4 << 10
"""Limit of arguments that are looked at as a whole: in a text, before the name, or in Python's quotes."""
_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_SCALAR = frozenset("+-.0123456789eEtrufalsnoTFN")


class ValueEnd:
    """Follows one JSON object, array or string to its end."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Number of characters of `text` that belong to the value, None where it takes all and goes on."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return at + 1 if self._depth <= 0 and not self._in_string else None
            at, c = found.end(), found[0]
            if c == "\\":
                self._escaped = True
            elif c == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if c in "{[" else -1
            if not self._in_string and self._depth <= 0:
                return at
        return None


def read_call(buffer: StreamBuffer, at: int, *, known_only: bool = False) -> Reading[bool]:
    """Read the call that begins `at` places ahead, its closing brace included. False, with nothing taken,
    where there is no call. known_only: a name that is none of the request's tools makes no call.
    """
    name: str | None = None
    early: str | None = None  # arguments that came before the name
    others = False
    if (yield from char(buffer, at)) != "{":
        return False
    while True:
        key = yield from _key(buffer, at + 1)
        if key is None or at - len(early or "") > MAX_HEAD_CHARS:
            return False
        word, at = key
        if word in ARGUMENT_KEYS and name is not None and (yield from _is_object(buffer, at)):
            buffer.take(at)
            buffer.start_call(name)
            yield from stream_value(buffer)
            yield from _tail(buffer)
            return True
        end = yield from _value(buffer, at, MAX_EARLY_CHARS if word in ARGUMENT_KEYS else MAX_NAME_CHARS)
        if end is None:
            return False
        value, at = buffer.text[at:end], end
        if word in NAME_KEYS:
            name = _text(value)
            if not name or (known_only and name not in buffer.tools):
                return False
        elif word in ARGUMENT_KEYS:
            early = value
        others = others or word not in (*NAME_KEYS, *ARGUMENT_KEYS, *LABEL_KEYS)
        at = yield from skip_space(buffer, at)
        after = yield from char(buffer, at)
        if after == "," and (yield from char(buffer, (yield from skip_space(buffer, at + 1)))) == "}":
            at, after = (yield from skip_space(buffer, at + 1)), "}"
        if after == "}" and name is not None:
            if others and early is None:  # they may be arguments: dropping them would call with none
                return False
            return _whole_call(buffer, name, early, at + 1)
        if after != ",":
            return False


def read_keyed_call(buffer: StreamBuffer, at: int) -> Reading[bool]:
    """Read the call that begins `at` places ahead, an object whose one key is the tool's name. False, with
    nothing taken, where there is none.
    """
    if (yield from char(buffer, at)) != "{":
        return False
    key = yield from _key(buffer, at + 1)
    if key is None or not key[0] or not (yield from _is_object(buffer, key[1])):
        return False
    buffer.take(key[1])
    buffer.start_call(key[0])
    yield from stream_value(buffer)
    at = yield from skip_space(buffer, 0)
    if (yield from char(buffer, at)) == "}":
        buffer.take(at + 1)
    return True


def read_list(buffer: StreamBuffer, at: int) -> Reading[bool]:
    """Read the list of calls whose bracket stands `at` places ahead. False, with nothing taken, where it
    does not begin with one.
    """
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
        if (yield from char(buffer, at)) == "]":
            buffer.take(at + 1)
            return True
        if not (yield from read_call(buffer, at)):
            return True


def _is_object(buffer: StreamBuffer, at: int) -> Reading[bool]:
    """Whether an object begins there as JSON writes it. Of one in Python's quotes the end has to be known."""
    if (yield from char(buffer, at)) != "{":
        return False
    at = yield from skip_space(buffer, at + 1)
    return (yield from char(buffer, at)) != "'"


def _whole_call(buffer: StreamBuffer, name: str, value: str | None, size: int) -> bool:
    """A call whose arguments are known: an object, the JSON of one in a text, or none. False, with nothing
    taken, where they are something else. size: the call's.
    """
    text = value if value is None else _text(value)
    value = value if text is None else text
    arguments = "{}" if value in (None, "null", "None", "") else mended_object(value) or _python_object(value)
    if arguments is None:
        return False
    buffer.take(size)
    buffer.start_call(name)
    buffer.arguments(arguments)
    buffer.end_call()
    return True


def _python_object(text: str) -> str | None:
    made = python_as_json(text.strip())
    return made if made.startswith("{") else None


def stream_value(buffer: StreamBuffer) -> Reading[None]:
    """Give out the object at hand as arguments, mended, piece by piece, and end the call."""
    value = JsonText()
    while True:
        buffer.arguments(value.feed(buffer.text))
        buffer.take(len(buffer.text) if value.size is None else value.size)
        if value.size is not None:
            buffer.end_call()
            return
        if buffer.ended:
            buffer.arguments(value.rest())
            return
        yield


def _tail(buffer: StreamBuffer) -> Reading[None]:
    """Drop what follows the arguments up to the object's brace. Leaves what is not of the object."""
    at = yield from skip_space(buffer, 0)
    while (yield from char(buffer, at)) == ",":
        after = yield from skip_space(buffer, at + 1)
        if (yield from char(buffer, after)) == "}":
            at = after
            break
        key = yield from _key(buffer, at + 1)
        end = None if key is None else (yield from _value(buffer, key[1], MAX_NAME_CHARS))
        if end is None or end > MAX_HEAD_CHARS:
            return
        at = yield from skip_space(buffer, end)
    if (yield from char(buffer, at)) == "}":
        buffer.take(at + 1)


def _key(buffer: StreamBuffer, at: int) -> Reading[tuple[str, int] | None]:
    """A key and the place of its value."""
    at = yield from skip_space(buffer, at)
    if (yield from char(buffer, at)) != '"':
        return None
    end = yield from _value(buffer, at, MAX_NAME_CHARS)
    if end is None:
        return None
    word = _text(buffer.text[at:end])
    at = yield from skip_space(buffer, end)
    if word is None or (yield from char(buffer, at)) != ":":
        return None
    return word, (yield from skip_space(buffer, at + 1))


def _value(buffer: StreamBuffer, at: int, limit: int) -> Reading[int | None]:
    """The place after the value that begins at `at`. None where it is no JSON, longer than `limit`, or not
    complete.
    """
    first = yield from char(buffer, at)
    if first == "{" and not (yield from _is_object(buffer, at)):
        return (yield from _literal(buffer, at, limit))
    if first not in '{["':
        end = at
        while (c := (yield from char(buffer, end))) and c in _SCALAR and end - at <= limit:
            end += 1
        return end if end > at else None
    follow, seen = ValueEnd(), at
    while True:
        size = follow.feed(buffer.text[seen:])
        seen = len(buffer.text) if size is None else seen + size
        if seen - at > limit:
            return None
        if size is not None or buffer.ended:
            return None if size is None else seen
        yield


def _literal(buffer: StreamBuffer, at: int, limit: int) -> Reading[int | None]:
    """Read a value like `_value`, from an object that Python writes."""
    follow, seen = LiteralEnd(), at
    while (size := follow.feed(buffer.text[seen:])) is None:
        seen = len(buffer.text)
        if seen - at > limit or buffer.ended:
            return None
        yield
    return seen + size if seen + size - at <= limit else None


def _text(value: str) -> str | None:
    """The text that a JSON string holds; None where it is something else."""
    try:
        text: Any = json.loads(value, strict=False)
        if isinstance(text, str):
            text.encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None
