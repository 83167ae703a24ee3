"""Pages from elsewhere as a prerequisite of a sequence: it waits for them no longer than computing them would
take, and what has not come by then is computed."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from firelane.engine.pages.page_fetcher import PageFetcher
from firelane.engine.sequences.prerequisites import Prerequisites, Waited
from firelane.engine.sequences.sequence import Sequence
from firelane.kv import WantedPage
from firelane.wire.frames import EngineStats, NewRequest


@dataclass(eq=False)
class _SequenceWait:
    """The wait of one sequence for these sources, until it is ready for anything else."""

    sequence: Sequence
    sources: list[PageFetcher]
    is_ready: bool


class PageWaits(Prerequisites):
    """Prerequisites: those of `inner`, and pages of `sources`, the nearest first."""

    def __init__(self, inner: Prerequisites) -> None:
        self._inner = inner
        self.sources: tuple[PageFetcher, ...] = ()
        self._waits: dict[int, _SequenceWait] = {}

    @property
    def is_waiting(self) -> bool:
        return self._inner.is_waiting or bool(self._waits) or any(one.is_busy for one in self.sources)

    @property
    def is_behind(self) -> bool:
        """The figures of a source are about to change."""
        return any(source.is_behind for source in self.sources)

    @property
    def has_news(self) -> bool:
        """The figures of a source have changed since they were told."""
        return any(source.has_news for source in self.sources)

    def in_stats(self, stats: EngineStats) -> EngineStats:
        """The same with those of the sources."""
        for source in self.sources:
            stats = source.in_stats(stats)
        return stats

    def expect(self, request: NewRequest) -> None:
        """Have its pages before it comes, from a source that can tell where they are."""
        for source in self.sources:
            source.expect(request)

    def expect_nothing(self) -> None:
        """Requests that were announced do not come."""
        for source in self.sources:
            source.expect_nothing()

    def add(self, sequence: Sequence, request: NewRequest) -> bool:
        is_ready = self._inner.add(sequence, request)
        coming: Set[WantedPage] = frozenset()
        sources = list[PageFetcher]()
        for source in self.sources:
            fetched = source.fetch(sequence, request, coming)
            if fetched is not None:
                coming |= fetched
                sources.append(source)
        if sources:
            self._waits[sequence.id] = _SequenceWait(sequence, sources, is_ready)
        return is_ready and not sources

    def take(self) -> list[Waited]:
        for source in self.sources:
            source.poll()
        return [*self._ready_otherwise(), *self._arrived()]

    def get(self, request_id: int) -> Sequence | None:
        wait = self._waits.get(request_id)
        return wait.sequence if wait else self._inner.get(request_id)

    def waiting(self) -> list[Sequence]:
        inner = [s for s in self._inner.waiting() if s.id not in self._waits]
        return inner + [wait.sequence for wait in self._waits.values()]

    def abort(self, sequence: Sequence) -> None:
        self._give_up(sequence)
        if self._inner.get(sequence.id) is sequence:
            self._inner.abort(sequence)

    def _ready_otherwise(self) -> Iterator[Waited]:
        """Sequences that wait for no pages."""
        for waited in self._inner.take():
            wait = self._waits.get(waited.sequence.id)
            if waited.error:
                self._give_up(waited.sequence)
            elif wait is not None:
                wait.is_ready = True
                continue
            yield waited

    def _arrived(self) -> Iterator[Waited]:
        for wait in list(self._waits.values()):
            wait.sources = [source for source in wait.sources if not source.is_over(wait.sequence)]
            if wait.is_ready and not wait.sources:
                del self._waits[wait.sequence.id]
                yield Waited(wait.sequence, None)

    def _give_up(self, sequence: Sequence) -> None:
        self._waits.pop(sequence.id, None)
        for source in self.sources:
            source.give_up(sequence)
