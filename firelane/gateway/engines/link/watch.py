"""The watch over an engine that is connected: it must show life, and its loop must make progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firelane.child_process.child import ProcessState
from firelane.child_process.silence import SilenceLimits, SilenceWatch
from firelane.gateway.engines.link.connection import Connection
from firelane.wire.frames import Beat

Process = Callable[[], ProcessState]
"""The process that an engine is now."""


class NoWatch:
    """Nobody watches."""

    def begin(self, connection: Connection, on_hang: Callable[[str], None], process: Process) -> None:
        pass

    def serves(self) -> None:
        pass

    def note(self, beat: Beat) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """silence_s, start_s, starved_s: as in SilenceLimits, of an engine, which beats each second. step_s: the
    longest that one step may take. load_s: the longest between two reports of its load."""

    silence_s: float = 5.0
    start_s: float = 60.0
    starved_s: float = 60.0
    step_s: float = 120.0
    load_s: float = 900.0

    @property
    def silence(self) -> SilenceLimits:
        return SilenceLimits(silence_s=self.silence_s, start_s=self.start_s, starved_s=self.starved_s)


class Heartbeat:
    """The Watch of an engine that beats."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._silence = SilenceWatch(deadlines.silence)
        self._on_hang: Callable[[str], None] = lambda _: None

    def begin(self, connection: Connection, on_hang: Callable[[str], None], process: Process) -> None:
        self._on_hang = on_hang
        self._silence.begin(
            lambda: connection.frames,
            lambda silent_s: on_hang(f"the engine has shown no life for {silent_s:g} s"),
            process,
        )

    def serves(self) -> None:
        self._silence.serves()

    def end(self) -> None:
        self._silence.end()

    def note(self, beat: Beat) -> None:
        is_loading = self._silence.is_starting
        limit_s = self._deadlines.load_s if is_loading else self._deadlines.step_s
        if beat.age_s > limit_s and self._silence.is_on:
            what = "its load has made no progress" if is_loading else "its step has not ended"
            self._on_hang(f"the engine hangs: {what} for {beat.age_s:.0f} s")


Watch = NoWatch | Heartbeat
