"""Steps that take no time, for tests of drafts: the times of a busy machine must not decide about them."""

from __future__ import annotations

from typing import Any


def make_steps_free(drafter: Any) -> None:
    """Each row of a step costs nothing, and that is known from the start: whatever is proposed is drafted."""
    times = drafter.times
    times.has_seen = lambda _: True
    times.share_of_one_more = times.seconds = lambda _: 0.0
