"""Hosts of a group of ranks: which ranks each of them has, and which ranks of two hosts exchange rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from firelane.errors import UsageError
from firelane.parallel.ranks import RankLayout


@dataclass(frozen=True, order=True)
class Wire:
    """Connection between two ranks of different hosts: "sum" goes both ways, between ranks of one stage;
    "mail" from `first` to `second`, of the next stage."""

    kind: Literal["sum", "mail"]
    first: int
    second: int

    @property
    def ranks(self) -> tuple[int, int]:
        return self.first, self.second

    def __str__(self) -> str:
        return f"{self.kind} of ranks {self.first} and {self.second}"


@dataclass(frozen=True, kw_only=True)
class HostLayout:
    """Hosts of a group: `count` of them with equally many ranks each, neighbours together. Host 0 has the
    rank that draws."""

    ranks: RankLayout
    count: int = 1

    def __post_init__(self) -> None:
        """Raises UsageError for ranks that the hosts cannot have in whole stages or whole parts of one."""
        total, lanes = self.ranks.ranks, self.ranks.lanes
        each = total // self.count
        if total % self.count or (each % lanes and lanes % each):
            stages = f"{self.ranks.pp} stages of {lanes} ranks" if self.ranks.pp > 1 else f"{total} ranks"
            raise UsageError(
                f"--nnodes {self.count}: the model has {stages}, which cannot be shared out evenly; choose "
                "sizes of --tensor-parallel-size and --pipeline-parallel-size that can"
            )

    @property
    def each(self) -> int:
        """Ranks of a host."""
        return self.ranks.ranks // self.count

    def host_of(self, rank: int) -> int:
        return (rank // self.each - self.ranks.sampler // self.each) % self.count

    def ranks_of(self, host: int) -> range:
        first = (host + self.ranks.sampler // self.each) % self.count * self.each
        return range(first, first + self.each)

    def first_rank(self, host: int) -> int:
        """The rank that starts the others of a host; on host 0 it draws tokens, too."""
        return self.ranks_of(host)[0] if host else self.ranks.sampler

    def peers(self, rank: int) -> list[int]:
        """Ranks of its stage on other hosts that it exchanges rows with: one of each host, which has the same
        place there. What they have goes to the other ranks of a host through memory."""
        first = self.ranks.stage_of(rank) * self.ranks.lanes
        stage = range(first, first + self.ranks.lanes)
        return [other for other in stage if other != rank and (other - rank) % self.each == 0]

    def wires(self) -> Iterator[Wire]:
        """All connections between hosts."""
        for rank in range(self.ranks.ranks):
            for peer in self.peers(rank):
                if rank < peer:
                    yield Wire("sum", rank, peer)
            receiver = rank + self.ranks.lanes
            if receiver < self.ranks.ranks and self.host_of(rank) != self.host_of(receiver):
                yield Wire("mail", rank, receiver)
