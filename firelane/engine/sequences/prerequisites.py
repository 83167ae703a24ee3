"""Prerequisites of a sequence, awaited before it can be scheduled: today the compilation of its grammar."""

from __future__ import annotations

from typing import NamedTuple

from firelane.engine.sequences.sequence import Sequence
from firelane.errors import FirelaneError, RequestError
from firelane.wire.frames import NewRequest

NO_IMAGES = (
    "this model takes no images here: send the request without them, or serve a model that has an encoder of "
    "images with --images"
)


class Waited(NamedTuple):
    """The end of a wait."""

    sequence: Sequence
    error: FirelaneError | None
    """Why the sequence can never be scheduled; None where it can."""


class Prerequisites:
    """Holds sequences that are not ready. Works beside the engine's loop, which polls it while it does. Here
    every sequence is ready, and none may ask for what needs preparation."""

    @property
    def is_waiting(self) -> bool:
        """Some sequence waits, or something is still being prepared."""
        return False

    def prepare(self, request: NewRequest) -> NewRequest:
        """The request with ids of tokens in all places of its prompt. Raises RequestError for images, which
        are not taken here."""
        if request.images:
            raise RequestError(NO_IMAGES, param="messages")
        return request

    def add(self, sequence: Sequence, request: NewRequest) -> bool:
        """True where the sequence is ready; otherwise `take` returns it later. Raises FirelaneError where it
        never will be."""
        if request.grammar is not None and sequence.pool is None:
            raise RequestError("this engine takes no grammars: send the request without one")
        return True

    def take(self) -> list[Waited]:
        """Sequences whose wait is over; each is returned once. Raises MachineError where the process has to
        end."""
        return []

    def get(self, request_id: int) -> Sequence | None:
        """A sequence that waits."""
        del request_id

    def waiting(self) -> list[Sequence]:
        return []

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence that waits."""
        raise AssertionError(f"{sequence} does not wait")
