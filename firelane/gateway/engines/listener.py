"""The listener to the engines of one model, in the gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from firelane.wire.frames import Ready, StepFrame


@dataclass(frozen=True, slots=True)
class ReplicaListener:
    """Calls by which the gateway hears of new engines and of each of their steps."""

    on_ready: Callable[[Ready], None]
    on_frame: Callable[[StepFrame, float, int], None]
    """After all sinks have seen the frame. The time is of the monotonic clock. The figure behind it counts
    tokens of the prompts that ended in the step."""


def _nothing(*_: object) -> None:
    pass


NOBODY = ReplicaListener(_nothing, _nothing)
"""Hears nothing."""
