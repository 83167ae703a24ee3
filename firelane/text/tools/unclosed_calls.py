"""Calls within reasoning: made there, or quoted.

Some models call a tool without closing their reasoning; others write a call down while they think about it.
What follows tells them apart: reasoning that is closed behind a call had quoted it.
"""

from __future__ import annotations

from collections.abc import Callable

from firelane.text.deltas import CallArguments, CallStart, Content, Delta
from firelane.text.tools.stream_buffer import Parser, Reading, StreamBuffer

MAX_PIECE_CHARS = 256
"""Characters that are looked at before it is asked whether they still may be calls."""


class UnclosedCalls:
    """Reads what may be calls at a mark within reasoning. close: the mark that would end it. own_line: the
    mark begins a line: text behind the calls may be the answer.
    """

    def __init__(self, buffer: StreamBuffer, answer: Parser, close: str, *, own_line: bool) -> None:
        self._buffer = buffer
        self._close = close
        self._own_line = own_line
        self._trial = _Trial(buffer)
        self._parsing = answer(self._trial)
        self._held: list[str] = []
        self._rest = ""
        self._searched = 0
        self._close_at = -1

    def read(self, mark: str, give: Callable[[str], None]) -> Reading[bool]:
        """Give out the calls that `mark` begins, and what follows, and return True; or give the part that
        quotes a call to `give`, leave the rest, and return False.
        """
        while True:
            self._feed()
            quoted = self._quoted(len(mark))
            if quoted is not None:
                held = "".join(self._held)
                give(held[:quoted])
                self._buffer.text = held[quoted:] + self._buffer.text
                return False
            if self._trial.ended:
                self._commit()
                return True
            if not self._buffer.text:
                yield

    def _feed(self) -> None:
        piece = self._buffer.take(MAX_PIECE_CHARS)
        self._held.append(piece)
        self._trial.feed(piece, ended=self._buffer.ended and not self._buffer.text)
        begun = self._trial.text_at is not None
        next(self._parsing, None)
        if self._trial.text_at is not None:
            self._rest = self._rest + piece if begun else "".join(self._held)[self._trial.text_at :]
            self._close_at = self._rest.find(self._close, self._searched)
            self._searched = max(0, len(self._rest) - len(self._close))

    def _quoted(self, mark: int) -> int | None:
        """The size of what has turned out to be reasoning; None as long as it may be calls. mark: the least
        that it is.
        """
        trial = self._trial
        if trial.unknown or trial.text_at == 0 or (trial.ended and not trial.num_calls):
            return mark
        if trial.text_at is None:
            return None
        if self._close_at < 0:
            begins_close = self._close.startswith(self._rest.strip()) and not trial.ended
            return None if self._own_line or begins_close else trial.text_at
        if self._rest.strip() == self._close:
            return None
        return trial.text_at + self._close_at

    def _commit(self) -> None:
        """The calls, and the text that is not reasoning's closing mark."""
        buffer = self._buffer
        closed = self._close in "".join(_content(self._trial.out))
        for delta in self._trial.out:
            if isinstance(delta, CallStart):
                if buffer.num_calls:
                    buffer.end_call()
                buffer.start_call(delta.name, delta.id)
            elif isinstance(delta, CallArguments):
                buffer.arguments(delta.text)
            elif isinstance(delta, Content) and not closed:
                buffer.content(delta.text)
        buffer.end_call()


class _Trial(StreamBuffer):
    """text_at: where the first text begins that is no call; None where there is none. unknown: a call names
    no tool of the request.
    """

    __slots__ = ("_fed", "text_at", "unknown")

    def __init__(self, buffer: StreamBuffer) -> None:
        super().__init__(buffer.new_id, tools=buffer.tools)
        self._fed = 0
        self.text_at: int | None = None
        self.unknown = False

    def feed(self, text: str, *, ended: bool) -> None:
        self._fed += len(text)
        self.text += text
        self.ended = ended

    def content(self, text: str) -> None:
        if self.text_at is None and text.strip():
            self.text_at = self._fed - len(self.text) - len(text) if self.num_calls else 0
        super().content(text)

    def start_call(self, name: str, call_id: str = "") -> None:
        self.unknown = self.unknown or name not in self.tools
        super().start_call(name, call_id)


def _content(deltas: list[Delta]) -> list[str]:
    return [delta.text for delta in deltas if isinstance(delta, Content)]
