"""The watch over a child that shows life by what it sends: too long a silence is a hang.

Silence is counted in turns of this event loop, not by the clock: after a pause of this process itself, or of
the whole machine, what the child has sent meanwhile is read before anything is concluded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from firelane.child_process.child import ProcessState, UnknownProcess

TICK_S = 0.5
STOPPED_SHARE = 0.2
"""Part of a silence that is enough where the process is stopped: it cannot say anything."""
STARVED_SHARE = 0.5
"""Part of a silence that threads have to have waited for a processor, together, to account for it."""
COUNTED_TICKS = 3
"""Silent ticks behind which that is counted: of a child that sends nobody reads its threads' figures."""


@dataclass(frozen=True, kw_only=True)
class SilenceLimits:
    """silence_s: a child that sends nothing for so long is stuck as a whole; a fifth of that is enough where
    the system does not run its process. start_s: the same while it starts: no thread of Python runs while a
    library comes from a slow drive, or a driver starts. starved_s: the same while its threads wait for a
    processor: where a machine has too much to do, another child would only add to it."""

    silence_s: float = 5.0
    start_s: float = 60.0
    starved_s: float = 60.0

    @property
    def stopped_s(self) -> float:
        return STOPPED_SHARE * self.silence_s


class SilenceWatch:
    """Watches one child at a time. All methods belong to one event loop."""

    def __init__(self, limits: SilenceLimits) -> None:
        self._limits = limits
        self._heard: Callable[[], int] | None = None
        self._on_silent: Callable[[float], None] = lambda _: None
        self._process: Callable[[], ProcessState] = UnknownProcess
        self._seen = self._silent_ticks = 0
        self._waited_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_starting = True

    @property
    def is_on(self) -> bool:
        return self._heard is not None

    def begin(
        self,
        heard: Callable[[], int],
        on_silent: Callable[[float], None],
        process: Callable[[], ProcessState],
    ) -> None:
        """Watch a child that has just been started, in place of an older one. heard: how many messages have
        come from it; on_silent: called once, with the seconds of silence, when they are too many."""
        self.end()
        self._heard, self._on_silent, self._process = heard, on_silent, process
        self._seen = self._silent_ticks = 0
        self.is_starting = True
        self._again()

    def serves(self) -> None:
        """It has started."""
        self.is_starting = False

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._heard = None

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        if self._heard is None:
            return
        heard = self._heard()
        self._silent_ticks = self._silent_ticks + 1 if heard == self._seen else 0
        self._seen = heard
        if self._silent_ticks == COUNTED_TICKS:
            self._waited_s = self._process().waited_s()
        silent_s = self._silent_ticks * TICK_S
        if silent_s < self._limit_s(silent_s):
            self._again()
            return
        self._on_silent(silent_s)

    def _limit_s(self, silent_s: float) -> float:
        """The longest silence that is no hang, after so much of it."""
        limits, process = self._limits, self._process()
        if silent_s >= limits.stopped_s and process.is_stopped():
            return limits.stopped_s
        if silent_s < limits.silence_s:
            return limits.silence_s
        if self.is_starting:
            return max(limits.silence_s, limits.start_s)
        counted_s = silent_s - COUNTED_TICKS * TICK_S
        is_starved = counted_s > 0 and process.waited_s() - self._waited_s > STARVED_SHARE * counted_s
        return max(limits.silence_s, limits.starved_s) if is_starved else limits.silence_s
