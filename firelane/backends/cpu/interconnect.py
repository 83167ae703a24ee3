"""Interconnect of a rank with the others of its group, as the loader sees it: memory that the ranks of a
machine share, connections to other hosts, and cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.link import LinkSizes, RankLink, RankWires
from firelane.backends.ranks.leader import Interconnect
from firelane.backends.ranks.words import Task
from firelane.contract import StepLimits
from firelane.native.host_memory import available_bytes
from firelane.program.program import Program

Programs = Mapping[int, Program]
"""Programs by rank (Member.programs)."""


class CpuInterconnect(Interconnect):
    """This class is for the only rank of a model, which is joined to nothing."""

    def attach(self, whole: Program, programs: Programs) -> StepLimits | None:
        """Find the other hosts of the group. Returns the sizes that the engine's host has found, if this is
        another one. Raises MachineError, UsageError."""
        del whole, programs

    @property
    def available_bytes(self) -> int:
        """Memory that is free on each machine, for the ranks that are there."""
        return available_bytes()

    def connect(self, layout: Layout, limits: StepLimits, programs: Programs) -> RankLink | None:
        """The memory that the ranks of this host share. layout: of this rank; limits: of the group. Raises
        MachineError."""
        del layout, limits, programs


@dataclass(frozen=True, kw_only=True)
class CpuShare:
    """The part of a CPU rank's Task that is of CPUs alone."""

    link_fd: int
    """The memory of RankLink, inherited."""
    link_sizes: LinkSizes
    wires: RankWires
    cores: tuple[int, ...]
    """The rank's own."""
    group_cores: int
    """Number of cores that the ranks of this host have together."""


class JoinedInterconnect(CpuInterconnect):
    """The interconnect that the first rank of this host has made. The whole process is on the rank's
    cores."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def connect(self, layout: Layout, limits: StepLimits, programs: Programs) -> RankLink:
        """Raises MachineError where the sizes differ."""
        del limits, programs  # the first rank has found what follows of them
        hosts, rank, share = self._task.hosts, self._task.rank, self._task.share
        sizes, cores, wires = share.link_sizes, share.group_cores, share.wires
        return RankLink(layout, hosts, rank, sizes, cores=cores, fd=share.link_fd, wires=wires)
