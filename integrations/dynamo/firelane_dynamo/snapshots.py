"""The engine's load as Dynamo's router and metrics want it, from the frames of its steps."""

from __future__ import annotations

from collections.abc import Callable

from firelane.wire.frames import Ready, StepFrame

INTERVAL_S = 0.05
Publish = Callable[[int, int, float | None], None]
"""Takes the KV blocks in use, all blocks, and the part of prompt tokens that were cached (None: no prompt
yet)."""


class Snapshots:
    """Events of the engine; publishes at most once in INTERVAL_S, and at once when the load has gone."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._next_s = 0.0

    def on_ready(self, ready: Ready) -> None:
        self._publish(0, ready.num_blocks, None)

    def on_frame(self, frame: StepFrame, now_s: float, prompt_tokens: int) -> None:
        del prompt_tokens
        stats = frame.stats
        if now_s < self._next_s and stats.running:
            return
        self._next_s = now_s + INTERVAL_S
        rate = stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else None
        self._publish(stats.kv_used_blocks, stats.kv_total_blocks, rate)
