"""Ids of requests on the way to an engine, where they differ from those that the gateway knows.

An engine on another host is reached anew after its network failed, and may be the same process still. The
requests that come back to it have ids then that it has never seen: each connection has a number of its own,
and its requests' ids begin with it (wire.numbers). So no token of before can be taken for one of now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from firelane.wire.frames import (
    Abort,
    Embedding,
    Finished,
    ForgetTenant,
    Forgotten,
    FromEngine,
    NewRequest,
    Rejected,
    Started,
    StepFrame,
    Submit,
    ToEngine,
    TokenLogprobs,
)
from firelane.wire.numbers import SHIFT

EntryT = TypeVar("EntryT", Started, Finished, TokenLogprobs, Embedding, NewRequest)


class SameIds:
    """Ids that are the same on both sides."""

    def sent(self, frame: ToEngine) -> ToEngine:
        return frame

    def received(self, frame: FromEngine) -> FromEngine:
        return frame


class Renumbering:
    """Ids of gateway number 0, as those of another number."""

    def __init__(self, number: int) -> None:
        self._offset = number << SHIFT

    def sent(self, frame: ToEngine) -> ToEngine:
        """The frame as the engine is to see it."""
        if isinstance(frame, Submit):
            return Submit(_moved(frame.requests, self._offset))
        if isinstance(frame, Abort):
            return Abort([one + self._offset for one in frame.ids])
        if isinstance(frame, ForgetTenant):
            return replace(frame, id=frame.id + self._offset)
        return frame

    def received(self, frame: FromEngine) -> FromEngine:
        """The frame as the gateway is to see it."""
        offset = self._offset
        if isinstance(frame, Rejected | Forgotten):
            return replace(frame, id=frame.id - offset)
        if not isinstance(frame, StepFrame):
            return frame
        return replace(
            frame,
            ids=[one - offset for one in frame.ids],
            started=_moved(frame.started, -offset),
            finished=_moved(frame.finished, -offset),
            logprobs=_moved(frame.logprobs, -offset),
            embeddings=_moved(frame.embeddings, -offset),
        )


def _moved(entries: Iterable[EntryT], offset: int) -> list[EntryT]:
    return [replace(entry, id=entry.id + offset) for entry in entries]
