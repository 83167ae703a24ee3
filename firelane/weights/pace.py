"""Pace of work beside steps, which wait for the same memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHARE = 0.1
"""The share of one core's time, while steps run."""
QUIET_S = 0.05
"""After a step, until its engine counts as idle: in a running batch the next one comes sooner."""


class StepPace:
    """Tells a thread that works in small pieces how long to rest between them: not at all while no step runs,
    and else so long that its pieces are SHARE of the time. The thread of the steps says when they run.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        """worked: seconds of a core that the calling thread has had."""
        self._clock, self._worked = clock, worked
        self._is_running = False
        self._ended_s = -QUIET_S
        self._rested_at: float | None = None

    def step_begins(self) -> None:
        self._is_running = True

    def step_ends(self) -> None:
        self._is_running, self._ended_s = False, self._clock()

    def rest(self, stop: threading.Event) -> None:
        """Between two pieces; `stop` ends it early."""
        before, now = self._rested_at, self._worked()
        if before is not None and self._is_busy():
            stop.wait((now - before) * (1 / SHARE - 1))
        self._rested_at = self._worked()

    def _is_busy(self) -> bool:
        return self._is_running or self._clock() - self._ended_s < QUIET_S
