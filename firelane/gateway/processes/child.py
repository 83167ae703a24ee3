"""One gateway process, as its owner sees it."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass, field

from firelane.child_process.ending import in_words
from firelane.child_process.silence import SilenceLimits, SilenceWatch
from firelane.child_process.state import LocalProcess
from firelane.gateway.processes.control import ControlChannel

LIMITS = SilenceLimits(silence_s=10.0)
"""A gateway process sends something each second; it may read a model's files in between."""


@dataclass(eq=False)
class Child:
    """index: its place; number: its own, in its requests' ids. listening, told: it has answered the last
    Listen, and the last Collect."""

    index: int
    number: int
    child: subprocess.Popen[bytes]
    control: ControlChannel
    began_s: float
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    watch: SilenceWatch = field(default_factory=lambda: SilenceWatch(LIMITS))
    messages: int = 0
    """Number of those that have come."""
    silent_s: float = 0.0
    """Silence for which it was killed; 0: it was not."""

    def watch_silence(self) -> None:
        """Kill it when it shows no life any more: whoever waits for its end starts another one."""
        process = LocalProcess(self.child.pid)
        self.watch.begin(lambda: self.messages, self._kill_silent, lambda: process)

    def note_message(self) -> None:
        """A message has come: it has started, and lives."""
        self.messages += 1
        self.watch.serves()

    def _kill_silent(self, silent_s: float) -> None:
        self.silent_s = silent_s
        self.child.kill()

    def ending(self) -> str:
        """How it ended, for people. Waits for it."""
        if self.silent_s:
            return f"showed no life for {self.silent_s:g} s"
        return in_words(self.child.wait())
