"""The terminal that a session talks through."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from firelane.errors import STEERING

HISTORY_LINES = 1000
HIDDEN = dict.fromkeys(STEERING)
"""Control characters of an answer, which would steer the terminal; not tab, new line and carriage return."""

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Terminal:
    """The terminal of a session: standard input and output. Lines that were typed are kept from one session
    to the next.
    """

    def __init__(self, history: Path) -> None:
        self._is_tty = sys.stdin.isatty()
        self._shows_tty = sys.stdout.isatty()
        self._history = history
        if self._is_tty:
            self._recall()

    def greet(self, name: str) -> None:
        if self._is_tty:
            self.say(f"{name}: /help tells the commands, Ctrl-D leaves")

    def read(self, prompt: str) -> str:
        """A line without its end. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""
        if self._is_tty:
            return self._typed(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def show(self, text: str) -> None:
        """A piece of an answer."""
        sys.stdout.write(text.translate(HIDDEN) if self._shows_tty else text)
        sys.stdout.flush()

    def show_reasoning(self, text: str) -> None:
        """Reasoning, dim. Where output goes elsewhere, the answer alone is wanted."""
        if self._shows_tty:
            sys.stdout.write(f"{DIM}{text.translate(HIDDEN)}{PLAIN}")
            sys.stdout.flush()

    def say(self, text: str) -> None:
        """A line about the session itself."""
        print(text.translate(HIDDEN), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Keep what was typed. Where that cannot be, it is lost."""
        if not self._is_tty:
            return
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._history.touch(mode=0o600)
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(self._history)

    def _recall(self) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline  # also gives `input` its line editor

            readline.read_history_file(self._history)

    def _typed(self, prompt: str) -> str:
        try:
            return input(prompt)
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            raise
