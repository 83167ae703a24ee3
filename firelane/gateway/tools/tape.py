"""Text that comes in pieces, read by parsers that are written as if it were all there.

A parser is a generator over a Tape: it looks at `tape.text`, takes what it understands, and yields where it
needs more. So a format is a few lines in the order of its syntax, not a table of states.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from firelane.gateway.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from firelane.gateway.detokenize import held_chars

ResultT = TypeVar("ResultT")
Reading = Generator[None, None, ResultT]
Parser = Callable[["Tape"], Reading[None]]


class Tape:
    """text: what has come and is not taken yet. ended: no more will come. thinking: the text at hand is
    reasoning. done: nothing that may follow is wanted. known: names of the tools; max_calls: the answer
    ends with this one, 0 = no limit. hide_reasoning: it is not given out.
    """

    __slots__ = (
        *("_hide_reasoning", "_new_id", "done", "ended", "known", "max_calls", "num_calls", "out", "text"),
        "thinking",
    )

    def __init__(
        self,
        new_id: Callable[[], str] = str,
        *,
        known: frozenset[str] = frozenset(),
        max_calls: int = 0,
        thinking: bool = False,
        hide_reasoning: bool = False,
    ) -> None:
        self.text = ""
        self.ended = False
        self.thinking = thinking
        self.done = False
        self.known = known
        self.max_calls = max_calls
        self.num_calls = 0
        self.out: list[Delta] = []
        self._new_id = new_id
        self._hide_reasoning = hide_reasoning

    def take(self, size: int) -> str:
        """The next `size` characters, which leave the tape."""
        taken, self.text = self.text[:size], self.text[size:]
        return taken

    def content(self, text: str) -> None:
        if text and not self.done:
            self.out.append(Content(text))

    def reasoning(self, text: str) -> None:
        if text and not self._hide_reasoning:
            self.out.append(Reasoning(text))

    def start_call(self, name: str) -> None:
        if self.done:
            return
        self.out.append(CallStart(self.num_calls, self._new_id(), name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that was started last."""
        if text and not self.done:
            self.out.append(CallArguments(self.num_calls - 1, text))

    def end_call(self) -> None:
        self.done = self.done or self.num_calls == self.max_calls


class TapeSplitter:
    """A Splitter (deltas.py) around a parser. After the parser's end all text is content."""

    __slots__ = ("_parsing", "_tape")

    def __init__(self, tape: Tape, parser: Parser) -> None:
        self._tape = tape
        self._parsing: Reading[None] | None = parser(tape)

    @property
    def thinking(self) -> bool:
        return self._tape.thinking

    @property
    def done(self) -> bool:
        return self._tape.done

    def push(self, text: str) -> list[Delta]:
        self._tape.text += text
        return self._run()

    def flush(self) -> list[Delta]:
        self._tape.ended = True
        return self._run()

    def _run(self) -> list[Delta]:
        tape = self._tape
        if self._parsing is not None and not tape.done:
            try:
                next(self._parsing)
            except StopIteration:
                self._parsing = None
        if tape.done:
            tape.text = ""
        elif self._parsing is None:
            tape.content(tape.take(len(tape.text)))
        out, tape.out = tape.out, []
        return out


def until(
    tape: Tape, marks: tuple[str, ...], give: Callable[[str], None], *, trim: bool = False
) -> Reading[str]:
    """Give out the text before the first of `marks`, which stays on the tape and is returned; "" where the
    text ends without one. trim: leave out what comes before a mark when it is only white space, and what
    comes after a call.
    """
    while True:
        at, mark = _first(tape.text, marks)
        sure = at if mark else len(tape.text) - (0 if tape.ended else held_chars(tape.text, marks))
        blank = trim and (not sure or tape.text[:sure].isspace())
        if mark or tape.ended:
            text = tape.take(sure)
            if not blank or (not mark and not tape.num_calls):
                give(text)
            return mark
        if sure and not blank:
            give(tape.take(sure))
            trim = False
        yield


def _first(text: str, marks: tuple[str, ...]) -> tuple[int, str]:
    """Where the first mark is, and which; (-1, "") where there is none."""
    first, found = -1, ""
    for mark in marks:
        at = text.find(mark)
        if at >= 0 and (first < 0 or at < first):
            first, found = at, mark
    return first, found


def char(tape: Tape, at: int) -> Reading[str]:
    """The character `at` places ahead, "" where the text ends before it."""
    while len(tape.text) <= at and not tape.ended:
        yield
    return tape.text[at : at + 1]


def skip_space(tape: Tape, at: int) -> Reading[int]:
    """The place of the first character from `at` on that is not white space."""
    while (yield from char(tape, at)).isspace():
        at += 1
    return at


def begins(tape: Tape, at: int, mark: str) -> Reading[bool]:
    """Whether `mark` stands `at` places ahead; waits no longer than it may."""
    while len(have := tape.text[at : at + len(mark)]) < len(mark) and mark.startswith(have):
        if tape.ended:
            return False
        yield
    return have == mark


def all_content(tape: Tape) -> Reading[None]:
    """The parser of plain text."""
    while True:
        tape.content(tape.take(len(tape.text)))
        if tape.ended:
            return
        yield
