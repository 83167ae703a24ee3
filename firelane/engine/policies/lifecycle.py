"""The part of a scheduling policy that is told of sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from firelane.engine.sequences.sequence import Sequence


class WaitingQueue(Protocol):
    """The waiting queue."""

    def __len__(self) -> int: ...

    def values(self) -> Iterator[Sequence]: ...

    def get(self, request_id: int) -> Sequence | None: ...

    def push(self, sequence: Sequence, *, first: bool = False) -> None:
        """Behind, or before, all others of its tenant."""
        ...

    def remove(self, sequence: Sequence) -> None: ...

    def num_background(self) -> int: ...


class SequenceLifecycle(Protocol):
    """Told of each change in the life of a sequence; everything else only reads."""

    @property
    def waiting(self) -> WaitingQueue: ...

    def added(self, sequence: Sequence) -> None: ...

    def started(self, sequence: Sequence) -> None: ...

    def stopped(self, sequence: Sequence) -> None:
        """It runs no more: finished or preempted."""
        ...

    def finished(self, sequence: Sequence) -> None: ...

    def check_integrity(self, live: Iterable[Sequence], running: Iterable[Sequence]) -> None:
        """Raise AssertionError unless its counts are right."""
        ...
