"""The heartbeat of an engine process: a thread that tells the gateway each second that the process runs, and
how long ago its loop last made progress.

A process that is stopped, or whose interpreter is blocked, sends none; one whose step or load hangs goes on
sending, with a growing age. The gateway draws the conclusions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from firelane.engine.process.channels import FrameChannel
from firelane.engine.process.rights import Rights
from firelane.engine.step.step_cost import StepCost
from firelane.errors import PeerLostError
from firelane.wire.frames import Beat

BEAT_S = 1.0


class Pulse:
    """When the loop last made progress. Written by the loop and by whatever loads, read by the heartbeat.
    cost: of its steps."""

    def __init__(self) -> None:
        self.cost = StepCost()
        self._at_s: float | None = time.monotonic()

    @property
    def age_s(self) -> float:
        at_s = self._at_s
        return 0.0 if at_s is None else time.monotonic() - at_s

    def touch(self) -> None:
        self._at_s = time.monotonic()

    def rest(self) -> None:
        """There is nothing to do until `touch`."""
        self._at_s = None


class HeartbeatSender:
    """Runs from its making to `close`. on_closed: called, in its thread, when the gateway has gone. rights:
    of the engine, whose child processes are looked after at each beat."""

    def __init__(
        self,
        channel: FrameChannel,
        pulse: Pulse,
        on_closed: Callable[[], None],
        rights: Rights | None = None,
    ) -> None:
        self._channel, self._pulse, self._on_closed = channel, pulse, on_closed
        self._rights = rights or Rights()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """Idempotent."""
        self._ended.set()

    def _beat(self) -> Beat:
        cost, replaced = self._pulse.cost, self._rights.replaced
        self._rights.check_helpers()
        return Beat(self._pulse.age_s, cost.step_ms, cost.token_ms, replaced.counts, replaced.broken)

    def _run(self) -> None:
        try:
            while True:
                self._channel.send(self._beat())
                if self._ended.wait(BEAT_S):
                    return
        except PeerLostError:
            if not self._ended.is_set():
                self._on_closed()
