"""Calls written as a JSON object: {"name": "f", "arguments": {...}}.

The arguments go out as they come. Until they begin nothing is given out, so that an object which turns out
to be no call can still become content; after that the text is followed by its brackets alone, and what the
model writes is what the client gets.
"""

from __future__ import annotations

import msgspec

from firelane.text.tools.stream_buffer import MAX_HEAD_CHARS, Reading, StreamBuffer, char, skip_space

ARGUMENT_KEYS = ("arguments", "parameters")
MAX_NAME_CHARS = 256
_OPENING = frozenset("{[")
_SCALAR = frozenset("+-.0123456789eEtrufalsn")


class ValueEnd:
    """Follows one JSON object, array or string to its end."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Number of characters of `text` that belong to the value, None where it takes all and goes on."""
        for at, c in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif c == "\\":
                    self._escaped = True
                elif c == '"':
                    self._in_string = False
            elif c == '"':
                self._in_string = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
            if not self._in_string and self._depth <= 0:
                return at + 1
        return None


def read_call(buffer: StreamBuffer, at: int, *, known_only: bool = False) -> Reading[bool]:
    """Read the call that begins `at` places ahead, its closing brace included. False, with nothing taken,
    where there is no call. known_only: a name that is none of the request's tools makes no call.
    """
    name: str | None = None
    early: str | None = None  # arguments that came before the name
    if (yield from char(buffer, at)) != "{":
        return False
    while True:
        key = yield from _key(buffer, at + 1)
        if key is None or at > MAX_HEAD_CHARS:
            return False
        word, at = key
        if word in ARGUMENT_KEYS and name is not None and (yield from char(buffer, at)) in _OPENING:
            buffer.take(at)
            buffer.start_call(name)
            yield from stream_value(buffer)
            yield from _tail(buffer)
            return True
        end = yield from _value(buffer, at, MAX_HEAD_CHARS if word in ARGUMENT_KEYS else MAX_NAME_CHARS)
        if end is None:
            return False
        value, at = buffer.text[at:end], end
        if word == "name":
            name = _text(value)
            if not name or (known_only and name not in buffer.tools):
                return False
        elif word in ARGUMENT_KEYS:
            early = value
        at = yield from skip_space(buffer, at)
        after = yield from char(buffer, at)
        if after == "}" and name is not None:
            buffer.take(at + 1)
            _whole_call(buffer, name, early)
            return True
        if after != ",":
            return False


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
        if not (yield from read_call(buffer, at)):
            return True


def _whole_call(buffer: StreamBuffer, name: str, value: str | None) -> None:
    """A call whose arguments are known: an object, JSON in a text, or none."""
    text = _text(value) if value is not None else None
    buffer.start_call(name)
    buffer.arguments(text if text is not None else "{}" if value in (None, "null") else str(value))
    buffer.end_call()


def stream_value(buffer: StreamBuffer) -> Reading[None]:
    """Give out the object or array at hand as arguments, piece by piece, and end the call."""
    end = ValueEnd()
    while True:
        size = end.feed(buffer.text)
        buffer.arguments(buffer.take(len(buffer.text) if size is None else size))
        if size is not None:
            buffer.end_call()
            return
        if buffer.ended:
            return
        yield


def _tail(buffer: StreamBuffer) -> Reading[None]:
    """Drop what follows the arguments up to the object's brace. Leaves what is not of the object."""
    at = yield from skip_space(buffer, 0)
    while (yield from char(buffer, at)) == ",":
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


def _text(value: str) -> str | None:
    """The text that a JSON string holds; None where it is something else."""
    try:
        return msgspec.json.decode(value, type=str)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
