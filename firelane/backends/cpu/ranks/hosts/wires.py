"""Connections between ranks of different hosts, made when a group starts: each host connects to those before
it in number."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from firelane.backends.cpu.link import RankWires
from firelane.backends.cpu.ranks.hosts.attach import Listener, WireFacts, connect
from firelane.errors import MachineError
from firelane.link.line import Line
from firelane.parallel.hosts import HostLayout, Wire

CHECK_S = 1.0
"""Between looks at whether the other hosts are there."""


class HostWires:
    """All wires of one host. Owns their sockets."""

    def __init__(self, hosts: HostLayout, host: int, group: str) -> None:
        self._hosts, self._host, self._group = hosts, host, group
        self._lines: dict[Wire, Line] = {}

    def open(
        self,
        addresses: Sequence[tuple[str, int]],
        listener: Listener | None,
        key: bytes,
        deadline_s: float,
        check: Callable[[], None],
    ) -> None:
        """addresses: of all hosts, by number. check: raises an error where one that is waited for is gone.
        Raises MachineError with the wire that is missing at the deadline."""
        wanted = {wire: self._other(wire) for wire in self._hosts.wires() if self._touches(wire)}
        for wire, other in wanted.items():
            if other < self._host:
                facts = WireFacts(self._group, str(wire))
                self._lines[wire] = connect(addresses[other], key, deadline_s, facts, check)
        missing = {str(wire): wire for wire, other in wanted.items() if other > self._host}
        while missing:
            assert listener is not None
            try:
                line, facts = listener.accept(min(deadline_s, time.monotonic() + CHECK_S))
            except TimeoutError:
                check()
                if time.monotonic() < deadline_s:
                    continue
                raise MachineError(f"no connection for the {min(missing)} was made in time") from None
            wire = missing.pop(facts.wire, None) if facts.group == self._group else None
            if wire is None:  # of another group, or of a host that attaches too late
                line.close()
            else:
                self._lines[wire] = line

    def of_ranks(self) -> Mapping[int, RankWires]:
        """Descriptors, by rank of this host."""
        return {rank: self._of(rank) for rank in self._hosts.ranks_of(self._host)}

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def _of(self, rank: int) -> RankWires:
        fds = {wire: line.fileno() for wire, line in self._lines.items() if rank in wire.ranks}
        mail = {wire.ranks: fd for wire, fd in fds.items() if wire.kind == "mail"}
        return RankWires(
            peers={sum(wire.ranks) - rank: fd for wire, fd in fds.items() if wire.kind == "sum"},
            mail_in=next((fd for (_, receiver), fd in mail.items() if receiver == rank), -1),
            mail_out=next((fd for (sender, _), fd in mail.items() if sender == rank), -1),
        )

    def _touches(self, wire: Wire) -> bool:
        return self._host in map(self._hosts.host_of, wire.ranks)

    def _other(self, wire: Wire) -> int:
        first, second = map(self._hosts.host_of, wire.ranks)
        return second if first == self._host else first
