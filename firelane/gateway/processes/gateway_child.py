"""One gateway process, as its owner sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from firelane.child_process import Child
from firelane.child_process.silence import SilenceLimits, SilenceWatch
from firelane.gateway.processes.control import ControlChannel

LIMITS = SilenceLimits(silence_s=10.0)
"""A gateway process sends something each second; it may read a model's files in between."""


@dataclass(eq=False)
class GatewayChild:
    """index: its place; number: its own, in its requests' ids. listening, told: it has answered the last
    Listen, and the last Collect."""

    index: int
    number: int
    child: Child
    control: ControlChannel
    began_s: float
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    watch: SilenceWatch = field(default_factory=lambda: SilenceWatch(LIMITS))
    messages: int = 0
    """Number of those that have come."""

    def watch_silence(self) -> None:
        """Kill it when it shows no life any more: whoever waits for its end starts another one."""
        self.watch.begin(
            lambda: self.messages,
            lambda silent_s: self.child.kill(f"showed no life for {silent_s:g} s"),
            lambda: self.child,
        )

    def note_message(self) -> None:
        """A message has come: it has started, and lives."""
        self.messages += 1
        self.watch.serves()
