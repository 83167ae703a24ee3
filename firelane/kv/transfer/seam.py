"""The interface of page transfer, as the engine uses it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from firelane.kv.pool import WantedPage, WantedState

Outcome = Literal["ok", "stale", "lost", "late"]
"""ok: all pages came. stale: some were not there any more, or changed while they were copied. lost: the peer
is gone. late: the time was over."""


class Settled(NamedTuple):
    """The end of a pull: nothing is written to its pages any more. arrived: for each page, whether its
    content is there. state: which of the names of the wanted state has come, or -1. outcome: of the pages."""

    ticket: int
    outcome: Outcome
    arrived: list[bool]
    nbytes: int
    seconds: float
    state: int = -1


class KVTransfer(Protocol):
    """Connections are made by others: both ends get a connected socket each, and own it from then on."""

    @property
    def engine_id(self) -> str:
        """The id of this engine from its start to its end: another life is another peer."""
        ...

    def export(self, sock: socket.socket) -> None:
        """Let the peer at the other end pull from here, until it hangs up."""
        ...

    def attach(self, sock: socket.socket) -> str:
        """Have pages of the peer at the other end, by its engine_id, which is returned. Raises PeerLostError
        where they cannot be used."""
        ...

    def seek(self, peer: str, address: str) -> None:
        """Have an engine of another server connected that gives pages at this address, unless it is. Pulls
        from it wait until that is decided."""
        ...

    def pull(
        self,
        peer: str,
        wanted: Sequence[WantedPage],
        mine: Sequence[int],
        deadline_s: float,
        state: WantedState | None = None,
    ) -> int:
        """Have the wanted pages copied into these of ours, and the state into its place, which all stay
        reserved until the ticket that is returned is settled: at deadline_s of time.monotonic() at the
        latest. Returns at once. A peer that is not attached is lost."""
        ...

    def poll(self) -> list[Settled]:
        """Pulls that have ended, each once."""
        ...

    def detach(self, peer: str) -> None:
        """Hang up; pulls from it are lost. An unknown peer is ignored."""
        ...
