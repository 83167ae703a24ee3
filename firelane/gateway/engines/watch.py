"""The watch over an engine that is connected: it must show life, and its loop must make progress.

Silence is counted in turns of this event loop, not by the clock: after a pause of the gateway itself, or of
the whole machine, what the engine has sent meanwhile is read before anything is concluded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from firelane.process_state import ProcessState, UnknownProcess
from firelane.wire.frames import Beat

TICK_S = 0.5
STARVED_SHARE = 0.5
"""Part of a silence that threads have to have waited for a processor, together, to account for it."""
COUNTED_TICKS = 3
"""Silent ticks behind which that is counted: of an engine that beats nobody reads its threads' figures."""


class Connected(Protocol):
    frames: int
    """Number of those that have come."""


Process = Callable[[], ProcessState]
"""The process that an engine is now."""


class Watch(Protocol):
    def begin(self, connection: Connected, on_hang: Callable[[str], None], process: Process) -> None:
        """Watch an engine that has just been started, in place of an older one."""
        ...

    def serves(self) -> None:
        """It has loaded."""
        ...

    def note(self, beat: Beat) -> None: ...
    def end(self) -> None: ...


class _NoWatch:
    def begin(self, connection: Connected, on_hang: Callable[[str], None], process: Process) -> None:
        pass

    def serves(self) -> None:
        pass

    def note(self, beat: Beat) -> None:
        pass

    def end(self) -> None:
        pass


NO_WATCH: Watch = _NoWatch()


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """silence_s: an engine that sends nothing for so long is stopped or stuck as a whole (it beats each
    second). start_s: the same while it loads and its process is not stopped: no thread of Python runs while a
    library comes from a slow drive, or a driver starts. starved_s: the same while its threads wait for a
    processor: where a machine has too much to do, another engine would only add to it. step_s: the longest
    that one step may take. load_s: the longest between two reports of its load."""

    silence_s: float = 5.0
    start_s: float = 60.0
    starved_s: float = 60.0
    step_s: float = 120.0
    load_s: float = 900.0


class Heartbeat:
    """The Watch of an engine that beats."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._connection: Connected | None = None
        self._on_hang: Callable[[str], None] = lambda _: None
        self._process: Process = UnknownProcess
        self._seen = self._silent_ticks = 0
        self._waited_s = 0.0
        self._loading = True
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: Connected, on_hang: Callable[[str], None], process: Process) -> None:
        self.end()
        self._connection, self._on_hang, self._process = connection, on_hang, process
        self._seen = self._silent_ticks = 0
        self._loading = True
        self._again()

    def serves(self) -> None:
        self._loading = False

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._connection = None

    def note(self, beat: Beat) -> None:
        limit_s = self._deadlines.load_s if self._loading else self._deadlines.step_s
        if beat.age_s > limit_s and self._connection is not None:
            what = "its load has made no progress" if self._loading else "its step has not ended"
            self._on_hang(f"the engine hangs: {what} for {beat.age_s:.0f} s")

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        connection = self._connection
        if connection is None:
            return
        silent = connection.frames == self._seen
        self._silent_ticks = self._silent_ticks + 1 if silent else 0
        self._seen = connection.frames
        if self._silent_ticks == COUNTED_TICKS:
            self._waited_s = self._process().waited_s()
        silent_s = self._silent_ticks * TICK_S
        if silent_s < self._limit_s(silent_s):
            self._again()
            return
        self._on_hang(f"the engine has shown no life for {silent_s:g} s")

    def _limit_s(self, silent_s: float) -> float:
        """The longest silence that is no hang, after so much of it."""
        limits, process = self._deadlines, self._process()
        if silent_s < limits.silence_s:
            return limits.silence_s
        if self._loading and not process.is_stopped():
            return max(limits.silence_s, limits.start_s)
        counted_s = silent_s - COUNTED_TICKS * TICK_S
        is_starved = counted_s > 0 and process.waited_s() - self._waited_s > STARVED_SHARE * counted_s
        return max(limits.silence_s, limits.starved_s) if is_starved else limits.silence_s
