"""Pages of other engines as a prerequisite of a sequence: it waits for them no longer than computing them
would take, and what has not come by then is computed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from firelane.engine.prerequisites import Prerequisites, Waited
from firelane.engine.sequence import Sequence
from firelane.kv import KvCache, WantedPage
from firelane.kv.transfer import KVTransfer, Outcome, Settled
from firelane.wire.frames import EngineStats, NewRequest

SHARE = 0.5
"""Of the time that computing takes, for pages to come in."""
LEAST_S, MOST_S, UNKNOWN_S = 0.05, 5.0, 1.0
"""UNKNOWN_S: in place of that share while no prompt has been computed here."""
PROMPT_TOKENS = 64
"""Of a step that says how long prompts take; smaller ones are mostly decodes."""
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

    def patience_s(self, tokens: int) -> float:
        """For a pull of pages of so many tokens."""
        if self._token_s is None:
            return UNKNOWN_S
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
class _Wait:
    """Of one sequence. tickets: pulls that it waits for; is_ready: for nothing else."""

    sequence: Sequence
    tickets: set[int]
    deadline_s: float
    is_ready: bool


class PagePulls:
    """See Prerequisites: those of `inner`, and pages. A page that is on its way is not pulled twice. Owns the
    incoming pages of `kv`."""

    def __init__(
        self,
        inner: Prerequisites,
        kv: KvCache,
        transfer: KVTransfer,
        counters: PullCounters,
        spare_pages: Callable[[], int],
    ) -> None:
        self._inner, self._kv, self._transfer = inner, kv, transfer
        self._counters, self._spare_pages = counters, spare_pages
        self._waits: dict[int, _Wait] = {}
        self._mine: dict[int, list[int]] = {}
        """Pages of ours, by the ticket of their pull."""
        self._coming: dict[WantedPage, int] = {}

    @property
    def is_waiting(self) -> bool:
        return self._inner.is_waiting or bool(self._waits) or bool(self._mine)

    def add(self, sequence: Sequence, request: NewRequest) -> bool:
        is_ready = self._inner.add(sequence, request)
        if not request.pages_at:
            return is_ready
        wanted = self._kv.wanted(sequence.chain, sequence.tokens, sequence.reusable_tokens)
        tokens = len(sequence.tokens)
        deadline_s = time.monotonic() + self._counters.patience_s(tokens)
        tickets = {self._coming[page] for page in wanted if page in self._coming}
        missing = [page for page in wanted if page not in self._coming]
        tickets |= self._pull(request.pages_at, missing, deadline_s)
        if tickets:
            self._waits[sequence.id] = _Wait(sequence, tickets, deadline_s, is_ready)
        return is_ready and not tickets

    def take(self) -> list[Waited]:
        for settled in self._transfer.poll():
            self._settle(settled)
        ended: list[Waited] = []
        for waited in self._inner.take():
            wait = self._waits.get(waited.sequence.id)
            if wait is None or waited.error:
                self._waits.pop(waited.sequence.id, None)
                ended.append(waited)
            else:
                wait.is_ready = True
        return ended + self._arrived()

    def get(self, request_id: int) -> Sequence | None:
        wait = self._waits.get(request_id)
        return wait.sequence if wait else self._inner.get(request_id)

    def waiting(self) -> list[Sequence]:
        inner = [s for s in self._inner.waiting() if s.id not in self._waits]
        return inner + [wait.sequence for wait in self._waits.values()]

    def abort(self, sequence: Sequence) -> None:
        """Its pages come all the same: somebody else may ask for them."""
        self._waits.pop(sequence.id, None)
        if self._inner.get(sequence.id) is sequence:
            self._inner.abort(sequence)

    def _pull(self, peer: str, missing: list[WantedPage], deadline_s: float) -> set[int]:
        mine = self._kv.incoming.begin(missing, self._spare_pages())
        if not mine:
            return set()
        pulled = missing[: len(mine)]
        ticket = self._transfer.pull(peer, pulled, mine, deadline_s)
        self._mine[ticket] = mine
        self._coming |= dict.fromkeys(pulled, ticket)
        return {ticket}

    def _settle(self, settled: Settled) -> None:
        self._counters.note(settled)
        self._kv.incoming.settle(self._mine.pop(settled.ticket), settled.arrived)
        self._coming = {page: t for page, t in self._coming.items() if t != settled.ticket}

    def _arrived(self) -> list[Waited]:
        """Sequences that need not wait any longer. A pull that is late keeps its pages, and nobody
        waiting."""
        now_s, ended = time.monotonic(), list[Waited]()
        for wait in list(self._waits.values()):
            wait.tickets &= self._mine.keys()
            if wait.is_ready and (not wait.tickets or now_s >= wait.deadline_s):
                del self._waits[wait.sequence.id]
                ended.append(Waited(wait.sequence, ""))
        return ended
