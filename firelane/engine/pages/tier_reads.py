"""Pages and snapshots of the tiers, read ahead of prompts that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field

import msgspec

from firelane.engine.pages.page_waits import PageFetcher, PageWait, PullCounters
from firelane.engine.sequences.sequence import Sequence, Status
from firelane.kv import KvCache, WantedPage
from firelane.kv.pool import STATES
from firelane.kv.tiers import PageRead, TieredPages, TierName, TierStats
from firelane.wire.frames import EngineStats

UNKNOWN_S = 5.0
"""For a read while no prompt has been computed here: who has just started reads most."""
BATCH = 8
"""Pages of one read: threads share a prompt's pages, and what has come by the deadline counts."""


@dataclass(eq=False)
class _Read:
    """Under way: of pages, or of the parts of one snapshot. mine: pages of ours, or for each part the state
    that it belongs to."""

    wanted: list[WantedPage]
    mine: list[int]
    deadline_s: float
    is_state: bool = False
    waiting: list[Sequence] = field(default_factory=list[Sequence])


class TierReads(PageFetcher):
    """Pages from tiers. While one read takes longer than its deadline, no other begins."""

    def __init__(
        self,
        kv: KvCache,
        tiers: TieredPages,
        counters: PullCounters,
        spare_pages: Callable[[], int],
    ) -> None:
        super().__init__(kv, counters, spare_pages)
        self._tiers = tiers
        self._reads: dict[int, _Read] = {}
        self._unused: list[tuple[Sequence, int]] = []
        """Pages read for sequences that have not begun, as far as it is known."""
        self._hits: Counter[TierName] = Counter()
        self._told = {name: TierStats() for name in tiers.stats()}

    @property
    def is_busy(self) -> bool:
        return bool(self._reads)

    @property
    def _under_way(self) -> Set[int]:
        return self._reads.keys()

    @property
    def is_behind(self) -> bool:
        return self._tiers.is_behind

    @property
    def has_news(self) -> bool:
        return self._tiers.stats() != self._told

    def poll(self) -> None:
        for read in self._tiers.poll():
            self._settle(read)

    def give_up(self, sequence: Sequence) -> None:
        super().give_up(sequence)
        self._unused = [(other, pages) for other, pages in self._unused if other is not sequence]

    def in_stats(self, stats: EngineStats) -> EngineStats:
        fields: dict[str, int] = {}
        self._told = self._tiers.stats()
        for name, tier in self._told.items():
            counts = tier._asdict()
            for what in ("read", "written"):
                counts[f"{what}_bytes"] = counts.pop(what) * self._tiers.page_bytes
            counts["hits"] = self._hits[name]
            fields |= {f"{name}_{what}": count for what, count in counts.items()}
        return msgspec.structs.replace(stats, **fields)

    def _patience_s(self, tokens: int) -> float:
        return self._counters.patience_s(tokens, UNKNOWN_S)

    def _ask(self, wait: PageWait) -> None:
        sequence, wanted = wait.sequence, self._wanted(wait.sequence)
        if not wanted or self._is_late():
            return
        tickets = {self._coming[page] for page in wanted if page in self._coming}
        missing = [page for page in wanted if page not in self._coming]
        state = missing.pop(0) if missing and missing[0].group == STATES else None
        if state is not None and not self._read_state(state, wait.deadline_s, tickets):
            return  # its pages alone are of no use
        mine = self._kv.incoming.begin(missing, self._room())
        self._unused.append((sequence, len(mine)))
        for first in range(0, len(mine), BATCH):
            into = mine[first : first + BATCH]
            tickets.add(self._read(_Read(missing[first : first + len(into)], into, wait.deadline_s)))
        for ticket in tickets:
            self._reads[ticket].waiting.append(sequence)
        wait.tickets = tickets

    def _read_state(self, state: WantedPage, deadline_s: float, tickets: set[int]) -> bool:
        """Its ticket is added; False where there is no room for it."""
        places = self._kv.states.incoming.begin([state], 1)
        if not places:
            return False
        parts = self._tiers.parts(state)
        ticket = self._read(_Read(parts, places * len(parts), deadline_s, is_state=True))
        self._coming[state] = ticket
        tickets.add(ticket)
        return True

    def _read(self, read: _Read) -> int:
        ticket = self._tiers.read(read.wanted, read.mine, read.deadline_s)
        self._reads[ticket] = read
        self._coming |= dict.fromkeys(read.wanted, ticket)
        return ticket

    def _wanted(self, sequence: Sequence) -> list[WantedPage]:
        """Pages of no longer a prefix than there is room for."""
        chain, tokens, spare = sequence.chain, sequence.tokens, self._room()
        wanted = self._kv.search.restorable(chain, tokens, sequence.reusable_tokens, self._tiers.holds)
        pages = [page for page in wanted if page.group != STATES]
        if len(pages) <= spare:
            return wanted
        blocks = chain.names(tokens, 0).index(pages[spare].name)
        return self._kv.search.restorable(chain, tokens, blocks * self._kv.block_size, self._tiers.holds)

    def _room(self) -> int:
        """Pages to read into: not those of sequences that were read for and have not begun."""
        self._unused = [(s, pages) for s, pages in self._unused if s.status is Status.WAITING]
        return max(0, self._spare_pages() - sum(pages for _, pages in self._unused))

    def _is_late(self) -> bool:
        now_s = self._clock()
        return any(now_s > read.deadline_s for read in self._reads.values())

    def _settle(self, ended: PageRead) -> None:
        read = self._reads.pop(ended.ticket)
        came = [source is not None for source in ended.sources]
        if read.is_state:
            self._kv.states.incoming.settle(read.mine[:1], [all(came)])
        else:
            self._kv.incoming.settle(read.mine, came)
        self._forget(ended.ticket)
        for wanted, source in zip(read.wanted, ended.sources, strict=True):
            if source is None:
                continue
            self._hits[source] += 1
            for sequence in () if read.is_state else read.waiting:
                sequence.restored[wanted.name] = source
