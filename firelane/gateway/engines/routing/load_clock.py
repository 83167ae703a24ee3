"""The time that a load is likely to take still."""

from __future__ import annotations

import math
from dataclasses import dataclass

from firelane.wire.frames import Progress

UNKNOWN_S = 5
"""Seconds left of a stage that does not tell how far it is."""
MOST_S = 600


@dataclass(slots=True)
class _Stage:
    began_s: float
    first: float
    latest: Progress


class LoadClock:
    """Reports of one engine's load. Stages run at the same time: the longest one counts."""

    def __init__(self) -> None:
        self._stages: dict[str, _Stage] = {}

    def note(self, frame: Progress, now_s: float) -> None:
        stage = self._stages.setdefault(frame.stage, _Stage(now_s, frame.done, frame))
        stage.latest = frame

    def left_s(self, now_s: float) -> int:
        """Whole seconds, at least 1: when it is worth asking again."""
        left = [_left_s(stage, now_s) for stage in self._stages.values()]
        return min(MOST_S, max(1, math.ceil(max(left, default=1.0))))


def _left_s(stage: _Stage, now_s: float) -> float:
    frame, done = stage.latest, stage.latest.done - stage.first
    if frame.done >= frame.total:
        return 0.0
    return (now_s - stage.began_s) * (frame.total - frame.done) / done if done > 0 else UNKNOWN_S
