"""Pages from elsewhere as a prerequisite of a sequence, and a place that they are brought from: a sequence
waits for them no longer than computing them would take, and what has not come by then is computed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field

import msgspec

from firelane.engine.sequences.prerequisites import Prerequisites, Waited
from firelane.engine.sequences.sequence import Sequence
from firelane.kv import KvCache, WantedPage
from firelane.kv.transfer.seam import Outcome, Settled
from firelane.wire.frames import EngineStats, NewRequest

SHARE = 0.5
"""The share of the time that computing takes, for pages to come in."""
LEAST_S, MOST_S, UNKNOWN_S = 0.05, 5.0, 1.0
"""UNKNOWN_S: in place of that share while no prompt has been computed here."""
PROMPT_TOKENS = 64
"""Prompt tokens of a step that says how long prompts take; smaller ones are mostly decodes."""
AVERAGED = 0.2
"""Weight of the newest step."""


class PullCounters:
    """Pulls by outcome, which only grow, and how long a prompt's tokens take here."""

    def __init__(self) -> None:
        self._outcomes: Counter[Outcome] = Counter()
        self._bytes, self._seconds = 0, 0.0
        self._token_s: float | None = None

    def note(self, settled: Settled) -> None:
        self._outcomes[settled.outcome] += 1
        self._bytes += settled.nbytes
        self._seconds += settled.seconds

    def note_step(self, tokens: int, seconds: float) -> None:
        if tokens >= PROMPT_TOKENS:
            newest = seconds / tokens
            before = newest if self._token_s is None else self._token_s
            self._token_s = before + AVERAGED * (newest - before)

    def patience_s(self, tokens: int, unknown_s: float | None = None) -> float:
        """For a pull of pages of so many tokens. unknown_s: in place of UNKNOWN_S."""
        if self._token_s is None:
            return UNKNOWN_S if unknown_s is None else unknown_s
        return min(MOST_S, max(LEAST_S, SHARE * tokens * self._token_s))

    def in_stats(self, stats: EngineStats) -> EngineStats:
        """The same with these."""
        outcomes = self._outcomes
        if not outcomes:
            return stats
        return msgspec.structs.replace(
            stats,
            pulls_ok=outcomes["ok"],
            pulls_stale=outcomes["stale"],
            pulls_lost=outcomes["lost"],
            pulls_late=outcomes["late"],
            pulled_bytes=self._bytes,
            pull_seconds=self._seconds,
        )


@dataclass(eq=False)
class PageWait:
    """The wait of one sequence. nearer: pages that others bring. peer: the engine that its request names.
    tickets: what it waits for. joins: some of these are older than it, and may not find what is there by
    now."""

    sequence: Sequence
    nearer: Set[WantedPage]
    peer: str
    deadline_s: float
    tickets: set[int] = field(default_factory=set[int])
    joins: bool = False


class PageFetcher(ABC):
    """A place below the KV cache that pages and snapshots are brought from: tiers, other engines. Owns the
    incoming pages of what it brings, and what each sequence waits for; what is on its way is not brought
    twice. Called by the engine's loop alone."""

    def __init__(
        self,
        kv: KvCache,
        counters: PullCounters,
        spare_pages: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kv, self._counters, self._spare_pages, self._clock = kv, counters, spare_pages, clock
        self._waits: dict[int, PageWait] = {}
        self._coming: dict[WantedPage, int] = {}
        """Pages on their way, by the ticket that brings them."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Something is on its way, or expected."""

    @property
    def is_behind(self) -> bool:
        """Its figures are about to change."""
        return False

    @property
    def has_news(self) -> bool:
        """Its figures have changed since they were told."""
        return False

    def in_stats(self, stats: EngineStats) -> EngineStats:
        """The same with its own."""
        return stats

    def expect(self, request: NewRequest) -> None:
        """From now on bring what the prompt could begin with, before the request comes."""
        del request

    def expect_nothing(self) -> None:
        """Prompts that were expected do not come. What is under way comes all the same."""
        return

    @abstractmethod
    def poll(self) -> None:
        """Take what has come."""

    def fetch(
        self, sequence: Sequence, request: NewRequest, nearer: Set[WantedPage]
    ) -> Set[WantedPage] | None:
        """Begin to bring what the prompt could begin with and is neither here nor, for this sequence, on its
        way from a nearer source. Returns what is on its way from here; the sequence is to wait until
        `is_over`, or is given up. None where nothing is."""
        deadline_s = self._clock() + self._patience_s(len(sequence.tokens))
        wait = PageWait(sequence, nearer, request.pages_at, deadline_s)
        self._ask(wait)
        if not wait.tickets:
            return None
        self._waits[sequence.id] = wait
        return {page for page, ticket in self._coming.items() if ticket in wait.tickets}

    def is_over(self, sequence: Sequence) -> bool:
        """The sequence need not wait any longer, and is forgotten: all has come, or it is too late. What is
        late keeps its pages, and nobody waiting."""
        wait, now_s = self._waits[sequence.id], self._clock()
        wait.tickets &= self._under_way
        if wait.joins and not wait.tickets and now_s < wait.deadline_s:
            self._ask(wait)
        if wait.tickets and now_s < wait.deadline_s:
            return False
        del self._waits[sequence.id]
        return True

    def give_up(self, sequence: Sequence) -> None:
        """Forget a sequence that will never begin, or that is not known. Its pages come all the same:
        somebody else may ask for them."""
        self._waits.pop(sequence.id, None)

    def _patience_s(self, tokens: int) -> float:
        return self._counters.patience_s(tokens)

    @property
    @abstractmethod
    def _under_way(self) -> Set[int]:
        """Tickets of what has not ended."""

    @abstractmethod
    def _ask(self, wait: PageWait) -> None:
        """Bring what is missing and not on its way, and note the tickets to wait for."""

    def _forget(self, ticket: int) -> None:
        self._coming = {page: other for page, other in self._coming.items() if other != ticket}


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

    def prepare(self, request: NewRequest) -> NewRequest:
        return self._inner.prepare(request)

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
