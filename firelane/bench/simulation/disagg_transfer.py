"""Pages that travel in simulated time: each takes its bytes' time on a link that an engine has to itself, in
each direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket

from firelane.bench.simulation.disagg_clock import Timeline
from firelane.errors import PeerLostError
from firelane.kv import KvCache, WantedPage, WantedState
from firelane.kv.transfer.seam import Settled


@dataclass(frozen=True, kw_only=True)
class PageLink:
    """gbps: 10^9 bytes a second. latency_s: of each pull."""

    gbps: float
    page_bytes: int
    latency_s: float = 0.0005


@dataclass(frozen=True, slots=True)
class _Pull:
    ticket: int
    found: list[tuple[int, int]]
    began_s: float
    ends_s: float
    deadline_s: float


class SimulatedTransfer:
    """A KVTransfer in simulated time. Pages are found in the peers' own caches, when a pull begins and when
    it ends. peers: by engine_id, shared by all engines of a simulation."""

    def __init__(
        self,
        timeline: Timeline,
        link: PageLink,
        kv: KvCache,
        engine_id: str,
        peers: dict[str, SimulatedTransfer],
    ) -> None:
        self._timeline, self._link, self._kv, self._peers = timeline, link, kv, peers
        self.engine_id = engine_id
        self._tickets = 0
        self._sent_until_s = self._received_until_s = 0.0
        self._pulls: list[tuple[SimulatedTransfer, Sequence[WantedPage], _Pull]] = []
        peers[engine_id] = self

    def export(self, sock: socket) -> None:
        del sock
        raise PeerLostError("simulated engines are connected from the start")

    def attach(self, sock: socket) -> str:
        del sock
        raise PeerLostError("simulated engines are connected from the start")

    def detach(self, peer: str) -> None:
        del self._peers[peer]

    def seek(self, peer: str, address: str) -> None:
        """All are connected from the start."""

    def pull(
        self,
        peer: str,
        wanted: Sequence[WantedPage],
        mine: Sequence[int],
        deadline_s: float,
        state: WantedState | None = None,
    ) -> int:
        """state: none ever comes."""
        del state
        self._tickets += 1
        source, now_s = self._peers[peer], self._timeline.now_s
        wanted = wanted[: len(mine)]
        found = [source.locate(page) for page in wanted]
        nbytes = self._link.page_bytes * sum(page >= 0 for page, _ in found)
        begin_s = max(now_s, source._sent_until_s, self._received_until_s)
        ends_s = begin_s + self._link.latency_s + nbytes / (self._link.gbps * 1e9)
        source._sent_until_s = self._received_until_s = ends_s
        self._pulls.append((source, wanted, _Pull(self._tickets, found, now_s, ends_s, deadline_s)))
        return self._tickets

    def poll(self) -> list[Settled]:
        now_s = self._timeline.now_s
        over = [one for one in self._pulls if min(one[2].ends_s, one[2].deadline_s) <= now_s]
        self._pulls = [one for one in self._pulls if one not in over]
        return [self._settled(*one) for one in over]

    def locate(self, wanted: WantedPage) -> tuple[int, int]:
        """The page and its tag; -1 where it is not here."""
        return self._kv.locate(wanted.group, wanted.name)

    def _settled(self, source: SimulatedTransfer, wanted: Sequence[WantedPage], pull: _Pull) -> Settled:
        seconds = min(pull.ends_s, pull.deadline_s) - pull.began_s
        if pull.ends_s > pull.deadline_s:
            return Settled(pull.ticket, "late", [False] * len(wanted), 0, seconds)
        arrived = [
            place[0] >= 0 and source.locate(page) == place
            for page, place in zip(wanted, pull.found, strict=True)
        ]
        nbytes = sum(arrived) * self._link.page_bytes
        return Settled(pull.ticket, "ok" if all(arrived) else "stale", arrived, nbytes, seconds)
