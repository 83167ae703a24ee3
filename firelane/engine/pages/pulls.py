"""Pages of other engines, pulled by their names."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.engine.pages.page_waits import PageFetcher, PageWait, PullCounters
from firelane.engine.sequences.sequence import PEER, Sequence
from firelane.kv import KvCache, PrefixChain, WantedPage, WantedState
from firelane.kv.pool import STATES
from firelane.kv.transfer.seam import KVTransfer, Settled
from firelane.wire.frames import NewRequest

AHEAD_PAGES = 64
"""Pages that one pull takes of a prompt that is being computed elsewhere, at most."""
AHEAD_POLL_S = 0.01
QUIET_S = 30.0
"""Without a new page of it, after which nobody waits for more."""


@dataclass(eq=False)
class _Expected:
    """Pages of a prompt that another engine is computing. ends_s: unless some come until then. ticket: of a
    pull under way, or 0; next_s: before the next one, while there is none."""

    peer: str
    chain: PrefixChain
    tokens: NDArray[np.int32]
    ends_s: float
    ticket: int = 0
    next_s: float = 0.0


class PagePulls(PageFetcher):
    """Pages from the engine that a request names."""

    def __init__(
        self,
        kv: KvCache,
        transfer: KVTransfer,
        counters: PullCounters,
        spare_pages: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: that of the transfer's deadlines."""
        super().__init__(kv, counters, spare_pages, clock=clock)
        self._transfer = transfer
        self._mine: dict[int, tuple[list[int], WantedState | None]] = {}
        """Pages of ours, and the state that comes with them, by the ticket of their pull."""
        self._coming_states: dict[bytes, int] = {}
        """By the first of its names."""
        self._expected: dict[tuple[bytes, bytes], _Expected] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._mine or self._expected)

    @property
    def _under_way(self) -> Set[int]:
        return self._mine.keys()

    def expect(self, request: NewRequest) -> None:
        """From now on have pages of its prompt as they are computed at its `pages_at`."""
        tokens = np.frombuffer(request.prompt[: len(request.prompt) // 4 * 4], np.dtype("<i4"))
        if len(tokens):
            self._seek(request)
            chain = self._kv.chain(request.salt, request.tenant)
            ends_s = self._clock() + QUIET_S
            expected = _Expected(request.pages_at, chain, tokens.astype(np.int32), ends_s)
            self._expected[request.salt, request.prompt] = expected

    def expect_nothing(self) -> None:
        self._expected.clear()

    def fetch(
        self, sequence: Sequence, request: NewRequest, nearer: Set[WantedPage]
    ) -> Set[WantedPage] | None:
        if not request.pages_at:
            return None
        self._seek(request)
        return super().fetch(sequence, request, nearer)

    def poll(self) -> None:
        for settled in self._transfer.poll():
            self._settle(settled)
        if self._expected:
            self._look_ahead()

    def _seek(self, request: NewRequest) -> None:
        if request.pages_address:
            self._transfer.seek(request.pages_at, request.pages_address)

    def _ask(self, wait: PageWait) -> None:
        """Pull what is missing and not on its way."""
        sequence = wait.sequence
        asked = sequence.chain, sequence.tokens, sequence.reusable_tokens
        wanted, names = self._kv.search.wanted(*asked), self._kv.search.wanted_states(*asked)
        coming = {self._coming[page] for page in wanted if page in self._coming}
        if names and names[0] in self._coming_states:
            coming.add(self._coming_states[names[0]])
            names = []
        elif names and WantedPage(STATES, names[0], sequence.chain.tenant) in wait.nearer:
            names = []
        missing = [page for page in wanted if page not in self._coming and page not in wait.nearer]
        wait.joins = bool(coming)
        state = self._place_of(names, sequence.chain.tenant)
        if not names or state is not None:  # else its pages alone are of no use
            coming |= self._pull(wait.peer, missing, wait.deadline_s, state)
        wait.tickets = coming

    def _pull(
        self, peer: str, missing: list[WantedPage], deadline_s: float, state: WantedState | None = None
    ) -> set[int]:
        mine = self._kv.incoming.begin(missing, self._spare_pages())
        if not mine and state is None:
            return set()
        pulled = missing[: len(mine)]
        ticket = self._transfer.pull(peer, pulled, mine, deadline_s, state)
        self._mine[ticket] = mine, state
        self._coming |= dict.fromkeys(pulled, ticket)
        if state is not None:
            self._coming_states[state.names[0]] = ticket
        return {ticket}

    def _place_of(self, names: list[bytes], tenant: bytes) -> WantedState | None:
        if not names:
            return None
        places = self._kv.states.incoming.begin([WantedPage(STATES, names[0], tenant)], 1)
        return WantedState(names, places[0], tenant) if places else None

    def _look_ahead(self) -> None:
        """Some pages of each expected prompt at a time, so that other pulls need not wait long."""
        now_s = self._clock()
        for key, expected in list(self._expected.items()):
            if expected.ticket or now_s < expected.next_s:
                continue
            wanted = self._kv.search.wanted(expected.chain, expected.tokens, len(expected.tokens))
            missing = [page for page in wanted if page not in self._coming][:AHEAD_PAGES]
            tickets = self._pull(expected.peer, missing, now_s + QUIET_S)
            if tickets:
                (expected.ticket,) = tickets
            elif not wanted or now_s >= expected.ends_s:
                del self._expected[key]

    def _note_ahead(self, settled: Settled) -> bool:
        """Whether the pull was ahead of its request; then one that found nothing is none to count."""
        for key, expected in self._expected.items():
            if expected.ticket != settled.ticket:
                continue
            expected.ticket, now_s = 0, self._clock()
            if any(settled.arrived):
                expected.ends_s = now_s + QUIET_S
                settled = settled._replace(outcome="ok")
            else:
                expected.next_s = now_s + AHEAD_POLL_S
            is_over = settled.outcome in ("lost", "late") or now_s >= expected.ends_s
            if settled.outcome != "stale":
                self._counters.note(settled)
            if is_over:
                del self._expected[key]
            return True
        return False

    def _settle(self, settled: Settled) -> None:
        if not self._note_ahead(settled):
            self._counters.note(settled)
        mine, state = self._mine.pop(settled.ticket)
        self._note_restored(settled)
        self._kv.incoming.settle(mine, settled.arrived)
        if state is not None:
            came = state.names[settled.state] if settled.state >= 0 else b""
            self._kv.states.incoming.settle_as(state.place, came)
            del self._coming_states[state.names[0]]
        self._forget(settled.ticket)

    def _note_restored(self, settled: Settled) -> None:
        pages = [page for page, ticket in self._coming.items() if ticket == settled.ticket]
        came = {page.name: PEER for page, is_here in zip(pages, settled.arrived, strict=True) if is_here}
        for wait in self._waits.values():
            if settled.ticket in wait.tickets:
                wait.sequence.restored |= came
