"""A conversation in the terminal: what is typed becomes commands and messages, answers are printed as they
come."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

from firelane.cli.chat_command.source import HIDDEN_WORDS, AnswerSource, Message, Settings
from firelane.cli.chat_command.terminal import Terminal
from firelane.errors import FirelaneError
from firelane.server.options.sampling import NUMBERS, setting
from firelane.text.deltas import Content, Delta, Reasoning

QUOTES = '"""'
HELP = """\
/clear             forget the conversation
/undo              forget the last question and its answer
/retry             answer the last question again
/system [TEXT]     what the model is told first; without TEXT, show it
/set [NAME VALUE]  temperature, top_p, max_tokens or another value of the answers; without, show them
/save FILE         write the conversation as JSON
/load FILE         go on with one that was saved
/help              this text
/exit              leave (or Ctrl-D)
A line that ends in \\ goes on in the next one, as does all between two lines of \"\"\".
Ctrl-C stops an answer, and what came of it stays in the conversation."""

ALL_DEFAULT = "all as the model's author advises, else as llama.cpp does"


class ChatSession:
    """One conversation. Owns neither source nor terminal."""

    def __init__(
        self, source: AnswerSource, terminal: Terminal, *, system: str = "", settings: Settings | None = None
    ) -> None:
        self.messages: list[Message] = []
        self.settings: Settings = {**(settings or {})}
        self.system = system
        self._source, self._terminal = source, terminal
        self._commands: dict[str, Callable[[str], None]] = {
            "clear": self._clear,
            "undo": self._undo,
            "retry": self._retry,
            "system": self._system,
            "set": self._set,
            "save": self._save,
            "load": self._load,
            "help": lambda _: self._terminal.say(HELP),
        }

    def run(self) -> None:
        """Until the input ends or the user leaves."""
        with _interruptible() as may_interrupt:
            while (text := self._next(may_interrupt)) not in ("/exit", "/quit", "/bye"):
                if text:
                    self._act(text)

    def ask_once(self, text: str) -> bool:
        """One question, without commands; whether it was answered."""
        with _interruptible():
            self._ask(text)
        return bool(self.messages)

    def _next(self, may_interrupt: Callable[[bool], None]) -> str:
        """The next line that is typed; nothing after Ctrl-C, and /exit at the end of the input."""
        try:
            may_interrupt(True)
            text = self._read().strip()
            may_interrupt(False)
        except EOFError:
            return "/exit"
        except KeyboardInterrupt:
            return ""
        return text

    def _act(self, text: str) -> None:
        """One question; an error is printed, and the session goes on."""
        name, _, rest = text[1:].partition(" ")
        try:
            if not text.startswith("/"):
                self._ask(text)
            elif name in self._commands:
                self._commands[name](rest.strip())
            else:
                self._terminal.say(f"there is no /{name}: /help tells what there is")
        except FirelaneError as error:
            self._terminal.say(f"error: {error}")

    def _read(self) -> str:
        lines: list[str] = []
        quoted = False
        while True:
            line = self._terminal.read("... " if lines else ">>> ")
            if line.strip() == QUOTES:
                quoted = not quoted
                if not quoted:
                    return "\n".join(lines[1:])
                lines.append("")
            elif quoted:
                lines.append(line)
            elif line.endswith("\\"):
                lines.append(line[:-1])
            else:
                return "\n".join([*lines, line])

    def _ask(self, text: str) -> None:
        """A question that gets no answer at all is not kept."""
        self.messages.append({"role": "user", "content": text})
        answer = _ShownAnswer(self._terminal)
        try:
            self._stream(answer)
        except FirelaneError as error:
            self._terminal.say(("\n" if answer.begun else "") + f"error: {error}")
        else:
            self._terminal.show("\n")
        if answer.content:
            self.messages.append(answer.message())
        else:
            self.messages.pop()

    def _stream(self, shown: _ShownAnswer) -> None:
        """Show an answer until it ends, or until Ctrl-C. shown: gets its pieces."""
        told = [{"role": "system", "content": self.system}] if self.system else []
        with _ctrl_c(at_once=self._source.interrupts) as stopped:
            with (
                suppress(KeyboardInterrupt),
                closing(cast(Any, self._source.answer([*told, *self.messages], self.settings))) as answer,
            ):
                for piece in answer:
                    shown.add(piece)
                    if stopped():
                        break
            if stopped():
                self._terminal.say(" (stopped)")

    def _clear(self, rest: str) -> None:
        del rest
        self.messages.clear()

    def _undo(self, rest: str) -> None:
        del rest
        if not self.messages:
            raise FirelaneError("there is nothing to forget")
        while self.messages and self.messages.pop()["role"] != "user":
            pass

    def _retry(self, rest: str) -> None:
        del rest
        asked = [message["content"] for message in self.messages if message["role"] == "user"]
        if not asked:
            raise FirelaneError("there is no question to answer again")
        self._undo("")
        self._ask(asked[-1])

    def _system(self, rest: str) -> None:
        if rest:
            self.system = rest
        else:
            self._terminal.say(self.system or "the model is told nothing first")

    def _set(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if name:
            self.settings[name] = setting(name, text.strip())
        else:
            shown = [f"{name} = {value}" for name, value in self.settings.items()]
            self._terminal.say("\n".join(shown) or f"{ALL_DEFAULT}; known are {', '.join(NUMBERS)}")

    def _save(self, rest: str) -> None:
        whole = {"model": self._source.name, "system": self.system, "messages": self.messages}
        try:
            text = json.dumps(whole, ensure_ascii=False, indent=2) + "\n"
            Path(rest).expanduser().write_text(text, encoding="utf-8")
        except OSError as error:
            raise FirelaneError(f"/save {rest}: {error.strerror}") from error

    def _load(self, rest: str) -> None:
        try:
            whole = json.loads(Path(rest).expanduser().read_text(encoding="utf-8"))
            messages = [_message(one) for one in whole["messages"]]
            system = str(whole.get("system", ""))
        except OSError as error:
            raise FirelaneError(f"/load {rest}: {error.strerror}") from error
        except (ValueError, LookupError, TypeError, AttributeError):
            raise FirelaneError(f"/load {rest}: is no conversation that /save has written") from None
        self.messages, self.system = messages, system
        self._terminal.say(f"{len(messages)} messages")


def _message(saved: dict[str, Any]) -> Message:
    """Raises LookupError and TypeError."""
    kept = {"role": str(saved["role"]), "content": str(saved["content"])}
    return kept | {HIDDEN_WORDS: str(saved[HIDDEN_WORDS])} if HIDDEN_WORDS in saved else kept


class _ShownAnswer:
    """An answer so far, which is shown as it grows."""

    def __init__(self, terminal: Terminal) -> None:
        self.content, self._reasoning = "", ""
        self._terminal = terminal

    @property
    def begun(self) -> bool:
        return bool(self.content or self._reasoning)

    def add(self, piece: Delta) -> None:
        if isinstance(piece, Content):
            self.content += piece.text
            self._terminal.show(piece.text)
        elif isinstance(piece, Reasoning):
            self._reasoning += piece.text
            self._terminal.show_reasoning(piece.text)

    def message(self) -> Message:
        said = {"role": "assistant", "content": self.content}
        return said | {HIDDEN_WORDS: self._reasoning} if self._reasoning else said


@contextmanager
def _interruptible() -> Generator[Callable[[bool], None]]:
    """Whether Ctrl-C may raise KeyboardInterrupt from now on, which it does once: a second press would meet
    the session where it is about to read again, and end it."""
    allowed = False

    def allow(now: bool) -> None:
        nonlocal allowed
        allowed = now

    def press(number: int, frame: FrameType | None) -> None:
        del number, frame
        if allowed:
            allow(False)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield allow
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ctrl_c(*, at_once: bool) -> Generator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed meanwhile. at_once: it raises KeyboardInterrupt, too."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        del number, frame
        pressed = True
        if at_once:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
