"""The listener to the engines of one model, in the gateway."""

from __future__ import annotations

from typing import Protocol

from firelane.wire.frames import Ready, StepFrame


class ReplicaListener(Protocol):
    """The gateway, which hears of new engines and of each of their steps."""

    def on_ready(self, ready: Ready) -> None: ...
    def on_frame(self, frame: StepFrame, now_s: float, prompt_tokens: int) -> None:
        """After all sinks have seen the frame. prompt_tokens: of the prompts that ended in its step."""
        ...
