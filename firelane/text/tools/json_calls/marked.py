"""Calls of a name and a JSON object with marks around each part: in a section of their own (DeepSeek V3 and
V3.1, Kimi K2) or without one (Functionary).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from firelane.text.tools.call_rules import TokenOf, inline_arguments, quoted, repeated, symbols, tool_rules
from firelane.text.tools.family import Called, Family
from firelane.text.tools.json_calls.json_call import stream_value
from firelane.text.tools.stream_buffer import Reading, StreamBuffer, begins, match, skip_space, until
from firelane.text.tools.tool import Tool

_FENCE = "```"


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """One way of writing such calls. section, call: opening and closing mark; those of the section are ""
    where there is none. head: what stands between a call's mark and its arguments, with groups `name` and,
    where the model writes one, `id`. before_name, number, before_arguments, after_arguments, between: what
    is forced around them; number: a pattern that follows the name.
    """

    section: tuple[str, str]
    call: tuple[str, str]
    head: re.Pattern[str]
    before_name: str = ""
    number: str = ""
    before_arguments: str = ""
    after_arguments: str = ""
    between: str = ""
    more: tuple[str, ...] = ()

    @property
    def delimiters(self) -> tuple[str, ...]:
        return (*filter(None, self.section), *self.call, *self.more)


class Marked(Family):
    """A family that writes calls with such marks."""

    def __init__(self, name: str, marks: Marks) -> None:
        self.name = name
        self.opening = marks.section[0] or marks.call[0]
        self.delimiters = marks.delimiters
        self._marks = marks
        self._no_head = re.compile(r"[{}]")

    @property
    def openings(self) -> tuple[str, ...]:
        return tuple(filter(None, (self._marks.section[0], self._marks.call[0])))

    def parse(self, buffer: StreamBuffer) -> Reading[None]:
        call = self._marks.call[0]
        while mark := (yield from until(buffer, self.openings, buffer.content, trim=True)):
            at = 0 if mark == call else (yield from skip_space(buffer, len(mark)))
            if not (yield from self._section(buffer, at)):
                buffer.content(buffer.take(len(mark)))

    def _section(self, buffer: StreamBuffer, at: int) -> Reading[bool]:
        """Calls up to the section's closing mark. False, with nothing taken, where there is none."""
        marks, read = self._marks, False
        while (yield from begins(buffer, at, marks.call[0])):
            head = yield from match(buffer, marks.head, at + len(marks.call[0]), self._no_head)
            if head is None:
                break
            read = True
            buffer.take(head.end())
            buffer.start_call(head["name"], head["id"] or "")
            yield from stream_value(buffer)
            at = yield from self._behind(buffer, _FENCE)
            at = yield from self._behind(buffer, marks.call[1])
        if read and marks.section[1]:
            yield from self._behind(buffer, marks.section[1])
        return read

    def _behind(self, buffer: StreamBuffer, mark: str) -> Reading[int]:
        """Take the mark where it comes next. The place of what follows."""
        at = yield from skip_space(buffer, 0)
        if not (yield from begins(buffer, at, mark)):
            return at
        buffer.take(at + len(mark))
        return (yield from skip_space(buffer, 0))

    def written(self, calls: Sequence[Called]) -> str:
        marks = self._marks
        made = [
            f"{marks.call[0]}{marks.before_name}{name}{f':{i}' if marks.number else ''}"
            f"{marks.before_arguments}{json.dumps(arguments, ensure_ascii=False)}{marks.after_arguments}"
            f"{marks.call[1]}"
            for i, (name, arguments) in enumerate(calls)
        ]
        return f"{marks.section[0]}{marks.between.join(made)}{marks.section[1]}"

    def rules(self, tools: Sequence[Tool], token_of: TokenOf, *, parallel: bool) -> str:
        marks = self._marks

        def text(said: str) -> str:
            return symbols(said, self.delimiters, token_of)

        def call(tool: Tool) -> str:
            number = f"/{marks.number}/" if marks.number else ""
            opening = marks.call[0] if marks.section[0] else ""  # else it is before the block
            head, tail = text(opening + marks.before_name + tool.name), marks.after_arguments
            return (
                f"{head} {number} {text(marks.before_arguments)} {inline_arguments(tool)} "
                f"{text(tail + marks.call[1])}"
            )

        between = quoted(marks.between) if marks.between else ""
        if not marks.section[0]:
            listed = repeated(f"{text(marks.call[0])} block", between, parallel=parallel)
            return f"calls: {listed}\nblock: call\n" + tool_rules(tools, call)
        listed = repeated("call", between, parallel=parallel)
        calls = f"calls: {text(marks.section[0])} block\nblock: {listed} {text(marks.section[1])}\n"
        return calls + tool_rules(tools, call)
