"""Text that comes in pieces, read by parsers that are written as if it were all there.

A parser is a generator over a StreamBuffer: it looks at `buffer.text`, takes what it understands, and yields
where it needs more. So a format is a few lines in the order of its syntax, not a table of states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

from firelane.text.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from firelane.text.tokens.detokenize import partial_suffix_length
from firelane.text.tools.custom.inputs import CustomInputs
from firelane.text.tools.tool import Tool

ResultT = TypeVar("ResultT")
Reading = Generator[None, None, ResultT]
Parser = Callable[["StreamBuffer"], Reading[None]]
MAX_HEAD_CHARS = 1024
"""Limit of what stands before a call's arguments, or a value: what turns out to be no call is looked at again
from the next mark on.
"""
NO_TOOLS: Mapping[str, Tool] = {}


class StreamBuffer:
    """text: what has come and is not taken yet. ended: no more will come. in_reasoning: the text at hand is
    reasoning. done: nothing that may follow is wanted. tools: those of the request, by name; max_calls: the
    answer ends with this one, 0 = no limit. hide_reasoning: it is not given out.
    """

    __slots__ = (
        *("_hide_reasoning", "new_id", "done", "ended", "max_calls", "num_calls", "out", "text"),
        *("in_reasoning", "tools"),
    )

    def __init__(
        self,
        new_id: Callable[[], str] = str,
        *,
        tools: Mapping[str, Tool] = NO_TOOLS,
        max_calls: int = 0,
        in_reasoning: bool = False,
        hide_reasoning: bool = False,
    ) -> None:
        self.text = ""
        self.ended = False
        self.in_reasoning = in_reasoning
        self.done = False
        self.tools = tools
        self.max_calls = max_calls
        self.num_calls = 0
        self.out: list[Delta] = []
        self.new_id = new_id
        self._hide_reasoning = hide_reasoning

    def fork(self) -> StreamBuffer:
        """A new buffer of the same answer: for what has been found to be no reasoning."""
        return StreamBuffer(self.new_id, tools=self.tools, max_calls=self.max_calls)

    def take(self, size: int) -> str:
        """The next `size` characters, which leave the buffer."""
        taken, self.text = self.text[:size], self.text[size:]
        return taken

    def content(self, text: str) -> None:
        if text and not self.done:
            self.out.append(Content(text))

    def reasoning(self, text: str) -> None:
        if text and not self._hide_reasoning:
            self.out.append(Reasoning(text))

    def start_call(self, name: str, call_id: str = "") -> None:
        """call_id: the one that the model has given it; "": it gets a new one."""
        if self.done:
            return
        self.out.append(CallStart(self.num_calls, call_id or self.new_id(), name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that was started last."""
        if text and not self.done:
            self.out.append(CallArguments(self.num_calls - 1, text))

    def end_call(self) -> None:
        self.done = self.done or self.num_calls == self.max_calls


class OutputParser:
    """Splits one choice's text as it comes, by a parser; after its end all text is content. The pieces'
    texts, put together, lose only the delimiters and white space beside them."""

    __slots__ = ("_buffer", "_inputs", "_parsing")

    def __init__(self, buffer: StreamBuffer, parser: Parser) -> None:
        self._buffer = buffer
        self._parsing: Reading[None] | None = parser(buffer)
        self._inputs = CustomInputs(buffer.tools)

    @property
    def in_reasoning(self) -> bool:
        """The text to come is reasoning."""
        return self._buffer.in_reasoning

    @property
    def done(self) -> bool:
        """The text that may come is not wanted."""
        return self._buffer.done

    def push(self, text: str) -> list[Delta]:
        self._buffer.text += text
        return self._run()

    def flush(self) -> list[Delta]:
        """The text that was held, now that no more comes."""
        self._buffer.ended = True
        return self._run()

    def _run(self) -> list[Delta]:
        buffer = self._buffer
        if self._parsing is not None and not buffer.done:
            try:
                next(self._parsing)
            except StopIteration:
                self._parsing = None
        if buffer.done:
            buffer.text = ""
        elif self._parsing is None:
            buffer.content(buffer.take(len(buffer.text)))
        out, buffer.out = buffer.out, []
        return self._inputs.read(out, ended=buffer.ended or buffer.done)


def until(
    buffer: StreamBuffer, delimiters: tuple[str, ...], give: Callable[[str], None], *, trim: bool = False
) -> Reading[str]:
    """Give out the text before the first of `delimiters`, which stays on the buffer and is returned; "" where
    the text ends without one. trim: leave out what comes before a mark when it is only white space, and what
    comes after a call.
    """
    firsts = tuple({mark[0] for mark in delimiters})
    while True:
        mark, sure = "", len(buffer.text)
        for first in firsts:  # most texts have none of them
            if first in buffer.text:
                at, mark = _first(buffer.text, delimiters)
                held = 0 if mark or buffer.ended else partial_suffix_length(buffer.text, delimiters)
                sure = at if mark else sure - held
                break
        blank = trim and (not sure or buffer.text[:sure].isspace())
        if mark or buffer.ended:
            text = buffer.take(sure)
            if not blank or (not mark and not buffer.num_calls):
                give(text)
            return mark
        if sure and not blank:
            give(buffer.take(sure))
            trim = False
        yield


def _first(text: str, delimiters: tuple[str, ...]) -> tuple[int, str]:
    """Place and text of the first mark; (-1, "") where there is none."""
    first, found = -1, ""
    for mark in delimiters:
        at = text.find(mark)
        if at >= 0 and (first < 0 or at < first):
            first, found = at, mark
    return first, found


def char(buffer: StreamBuffer, at: int) -> Reading[str]:
    """The character `at` places ahead, "" where the text ends before it."""
    while len(buffer.text) <= at and not buffer.ended:
        yield
    return buffer.text[at : at + 1]


def skip_space(buffer: StreamBuffer, at: int) -> Reading[int]:
    """The place of the first character from `at` on that is not white space."""
    while (yield from char(buffer, at)).isspace():
        at += 1
    return at


def begins(buffer: StreamBuffer, at: int, mark: str) -> Reading[bool]:
    """Whether `mark` stands `at` places ahead; waits no longer than it may."""
    while len(have := buffer.text[at : at + len(mark)]) < len(mark) and mark.startswith(have):
        if buffer.ended:
            return False
        yield
    return have == mark


def skip_marks(buffer: StreamBuffer, at: int, mark: str) -> Reading[int]:
    """The place behind white space and `mark`, which models write twice at times."""
    at = yield from skip_space(buffer, at)
    if (yield from begins(buffer, at, mark)):
        at = yield from skip_space(buffer, at + len(mark))
    return at


def take_marks(buffer: StreamBuffer, mark: str) -> Reading[None]:
    """Take `mark`, as often as it comes next, and the white space before it."""
    while True:
        at = yield from skip_space(buffer, 0)
        if not (yield from begins(buffer, at, mark)):
            return
        buffer.take(at + len(mark))


def match(
    buffer: StreamBuffer, pattern: re.Pattern[str], at: int, dead: re.Pattern[str]
) -> Reading[re.Match[str] | None]:
    """The match of a pattern `at` places ahead, None where there is none and `dead` is found, which says
    that there will be none, or it would be too long. The pattern matches no text that has more to come.
    """
    while (found := pattern.match(buffer.text, at, at + MAX_HEAD_CHARS)) is None:
        too_long = len(buffer.text) - at >= MAX_HEAD_CHARS
        if buffer.ended or too_long or dead.search(buffer.text, at):
            return None
        yield
    return found


def content_without(marks: tuple[str, ...]) -> Parser:
    """The parser of plain text out of which these marks are taken."""

    def parse(buffer: StreamBuffer) -> Reading[None]:
        while mark := (yield from until(buffer, marks, buffer.content, trim=True)):
            buffer.take(len(mark))

    return parse


def all_content(buffer: StreamBuffer) -> Reading[None]:
    """The parser of plain text."""
    while True:
        buffer.content(buffer.take(len(buffer.text)))
        if buffer.ended:
            return
        yield
