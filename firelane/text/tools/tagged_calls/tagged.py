"""Calls with a tag around each parameter: Qwen 3 Coder and 3.5, GLM 4.5, MiniMax M2, Seed-OSS, DeepSeek 3.2.

The arguments are given out as JSON as they come: strings piece by piece, all else when it is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from firelane.text.tools.argument_schema import argument_schema
from firelane.text.tools.call_rules import TokenOf
from firelane.text.tools.family import Called, Family
from firelane.text.tools.json_calls.json_call import stream_value
from firelane.text.tools.parameters import KINDS, STRING, Schema, as_json, kinds_of, quoted_text, text_in_json
from firelane.text.tools.stream_buffer import (
    Reading,
    StreamBuffer,
    begins,
    char,
    match,
    skip_marks,
    skip_space,
    take_marks,
    until,
)
from firelane.text.tools.tagged_calls.tagged_ends import PartialCall, ValueEnds
from firelane.text.tools.tagged_calls.tagged_rules import TaggedRules
from firelane.text.tools.tagged_calls.tags import NUMBER, Tags, closing
from firelane.text.tools.tool import Tool


class Tagged(Family):
    """A family that writes calls with such tags."""

    def __init__(self, name: str, tags: Tags) -> None:
        self.name = name
        self.opening = tags.opening
        self.delimiters, self.around = tags.delimiters, tags.around
        self.content_mark = tags.content_mark
        self._tags = tags
        self._call, self._key = tags.call_pattern, tags.key_pattern
        ends = max(1, f"{tags.call}{tags.call_end}".count(">"))
        self._no_call = re.compile(f"(?:[^>]*>){{{ends}}}")
        self._no_key = tags.no_key_pattern
        self._ends = ValueEnds(tags)

    @property
    def openings(self) -> tuple[str, ...]:
        tags = self._tags
        return (*tags.sections, tags.call) if tags.call else tags.sections

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        yield from self.read(buffer)

    def read(self, buffer: StreamBuffer, ends: tuple[str, ...] = ()) -> Reading[str]:
        """Content and calls up to one of `ends`, which stays on the buffer and is returned; "" for none."""
        tags = self._tags
        marks = (*self.openings, *self.around, *ends)
        while mark := (yield from until(buffer, marks, buffer.content, trim=True)):
            if mark in ends:
                return mark
            if mark in self.around:
                buffer.take(len(mark))
                continue
            if mark == tags.call:  # models leave the section's mark out
                close = closing(self.opening) if tags.sections else ""
                read = yield from self._section(buffer, 0, close, known_only=True)
            else:
                at = yield from skip_marks(buffer, len(mark), mark)
                read = yield from self._section(buffer, at, closing(mark))
            if not read:
                buffer.content(buffer.take(len(mark)))
        return ""

    def _section(
        self, buffer: StreamBuffer, at: int, close: str, *, known_only: bool = False
    ) -> Reading[bool]:
        """Calls up to the section's closing tag. False, with nothing taken, where there is none."""
        tags, read = self._tags, False
        while (yield from begins(buffer, at, tags.call)):
            head = yield from match(buffer, self._call, at, self._no_call)
            if head is None or (known_only and head[1] not in buffer.tools):
                break
            read = True
            buffer.take(head.end())
            if tags.call:
                yield from _take_again(buffer, head[0])
            buffer.start_call(head[1])
            call = PartialCall(_schema(buffer.tools.get(head[1])), close)
            if (yield from self._arguments(buffer, call)):
                yield from take_marks(buffer, tags.call_close or close)
            if not tags.call:
                return True
            at = yield from skip_space(buffer, 0)
        if read and close:
            yield from take_marks(buffer, close)
        return read

    def _arguments(self, buffer: StreamBuffer, call: PartialCall) -> Reading[bool]:
        """The rest of a call, from behind its name up to its closing tag. Where the text ends before, they
        stay unfinished, and the result is False; what is neither a parameter nor a tag ends the call, and is
        left.
        """
        if (yield from self._whole(buffer)):
            return True
        before = "{"
        while (key := (yield from self._next_key(buffer))) is not None:
            buffer.arguments(f"{before}{quoted_text(key[1])}: ")
            before = ", "
            call.written.add(key[1])
            if not (yield from self._value(buffer, _kinds(key, call.schema), call)):
                return False
        at = yield from skip_space(buffer, 0)
        for close in (self._tags.call_close or call.section_close, call.section_close):
            if close and (yield from begins(buffer, at, close)):
                break
        else:
            if buffer.ended:
                return False
        buffer.arguments("{}" if before == "{" else "}")
        buffer.end_call()
        return True

    def _whole(self, buffer: StreamBuffer) -> Reading[bool]:
        """Whether the arguments are one JSON object between marks, which then is given out."""
        first, last = self._tags.whole
        at = yield from skip_space(buffer, 0)
        if not first or not (yield from begins(buffer, at, first)):
            return False
        at = yield from skip_space(buffer, at + len(first))
        if (yield from char(buffer, at)) != "{":
            return False
        buffer.take(at)
        yield from stream_value(buffer)
        yield from take_marks(buffer, last)
        return True

    def _next_key(self, buffer: StreamBuffer) -> Reading[re.Match[str] | None]:
        """A parameter's opening tag, taken; None, with nothing taken, where something else stands."""
        at = yield from skip_space(buffer, 0)
        if not (yield from begins(buffer, at, self._tags.key)):
            return None
        key = yield from match(buffer, self._key, at, self._no_key)
        if key is not None:
            buffer.take(key.end())
            yield from _take_again(buffer, key[0])
        return key

    def _value(self, buffer: StreamBuffer, kinds: frozenset[str], call: PartialCall) -> Reading[bool]:
        """A value with its closing tag, given out as JSON. False where the text ends before that."""
        raw, _ = self._tags.raw
        text = self._raw if raw and (yield from begins(buffer, 0, raw)) else self._text
        if self._tags.lines and (yield from char(buffer, 0)) == "\n":
            buffer.take(1)
        if kinds == STRING:
            buffer.arguments('"')
            closed = yield from text(buffer, call, lambda said: buffer.arguments(text_in_json(said)))
            buffer.arguments('"' if closed else "")
            return closed
        pieces: list[str] = []
        closed = yield from text(buffer, call, pieces.append)
        value = "".join(pieces)
        buffer.arguments(as_json(value, kinds) if closed else value)
        return closed

    def _raw(self, buffer: StreamBuffer, call: PartialCall, give: Callable[[str], None]) -> Reading[bool]:
        """Read a value between marks of its own, which holds any tag."""
        del call
        first, last = self._tags.raw
        buffer.take(len(first))
        mark = yield from until(buffer, (f"{last}{self._tags.value_close}",), give)
        buffer.take(len(mark))
        return bool(mark)

    def _text(self, buffer: StreamBuffer, call: PartialCall, give: Callable[[str], None]) -> Reading[bool]:
        """A value's text, up to what ends it. Only its own closing tag is taken."""
        ends = self._ends
        begun = False

        def given(text: str) -> None:
            nonlocal begun
            if text:
                begun = True
                give(text)

        while mark := (yield from until(buffer, ("\n<", "<"), given)):
            at = len(mark) - 1
            if (yield from char(buffer, at + 1)) not in ends.seconds:
                given(buffer.take(len(mark)))
                continue
            size = yield from ends.own(buffer, at)
            if size:
                given("" if self._tags.lines else mark[:at])
                buffer.take(at + size)
                yield from take_marks(buffer, self._tags.value_close)
                return True
            if (yield from ends.other(buffer, at, call, begun=begun)):
                buffer.take(at)
                return True
            given(buffer.take(len(mark)))
        return False

    def written(self, calls: Sequence[Called]) -> str:
        tags = self._tags
        made = [self._written_call(called, i) for i, called in enumerate(calls, 1)]
        if not tags.sections:
            return "\n".join(made)
        blocks = ["".join(made)] if tags.many else made
        first, last = self.opening + (tags.gap if tags.call else ""), closing(self.opening)
        return "\n".join(f"{tags.before}{first}{block}{last}" for block in blocks)

    def _written_call(self, called: Called, place: int) -> str:
        tags = self._tags
        line = "\n" if tags.lines else ""
        text = f"{tags.call}{called[0]}{tags.call_end.replace(NUMBER, str(place))}{tags.gap}"
        for key, value in called[1].items():
            said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            text += f"{tags.key_mark(key, KINDS[type(value)])}{line}{said}{line}{tags.value_close}{tags.gap}"
        return text + (tags.call_close + tags.gap if tags.call else "")

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        return TaggedRules(self._tags, token_of).write(tools, parallel=parallel)


def _take_again(buffer: StreamBuffer, tag: str) -> Reading[None]:
    """Take a tag that has been taken already, where it comes a second time."""
    at = yield from skip_space(buffer, 0)
    if (yield from begins(buffer, at, tag)):
        buffer.take(at + len(tag))


def _schema(tool: Tool | None) -> Schema:
    """The schema of the call's arguments; {} where nothing is known of them."""
    if tool is None or tool.parameters is None:
        return {}
    return argument_schema(tool.parameters) or {}


def _kinds(key: re.Match[str], schema: Schema) -> frozenset[str]:
    """Kinds of a value: those that the tag itself says, else those of the schema. Not a string: JSON, which
    `object` stands for."""
    if key["typed"]:
        return STRING if key["typed"] in ("true", "string") else frozenset({"object"})
    return kinds_of(schema, key[1])
