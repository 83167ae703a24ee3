"""Members of a group of ranks, as the loader sees them: what a process runs of the model, how large its steps
are, and what it shares with the others. A model's only process is a group of one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.link import NO_WIRES, LinkSizes, RankLink, RankWires
from firelane.contract import SlotState, Span, StepLimits
from firelane.native.host_memory import available_bytes
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.program import Program


@dataclass(frozen=True, kw_only=True)
class GroupSizes:
    """Sizes that limits are resolved for (contract.resolve.ModelSizes): of the rank that needs most memory
    for a page, or whose part of one is largest, and of the one that needs most for a sequence."""

    max_model_len: int
    spans: tuple[Span, ...]
    kv_bytes_per_token: int
    state_bytes: int
    weights_bytes: int
    """Of all ranks of a machine, before they are packed."""

    @classmethod
    def of(cls, programs: Sequence[Program], hosts: int = 1) -> GroupSizes:
        """Programs: of all ranks, which are on so many machines."""
        return cls(
            max_model_len=programs[0].max_model_len,
            spans=programs[0].spans,
            kv_bytes_per_token=max(-(-own.kv_bytes_per_token // own.row_ranks) for own in programs),
            state_bytes=max(program.state_bytes for program in programs),
            weights_bytes=sum(program.weights_bytes for program in programs) // hosts,
        )


def limits_of(program: Program, limits: StepLimits) -> StepLimits:
    """Limits of one rank: it has as many pages and states as the group, however large they are here."""
    return replace(limits, spans=program.spans, state_bytes=program.state_bytes)


class Member(Protocol):
    """One process of a group."""

    @property
    def ranks(self) -> int:
        """Of this machine."""
        ...

    @property
    def max_in_flight(self) -> int: ...

    @property
    def available_bytes(self) -> int:
        """Memory that is free on each machine, for the ranks that are there."""
        ...

    def program(self, program: Program) -> Program:
        """Its part of the whole model. Raises UsageError for sizes that no cut exists for."""
        ...

    def sizes(self, program: Program) -> GroupSizes:
        """The sizes that limits have to be found for, of the part `program`."""
        ...

    @property
    def limits(self) -> StepLimits | None:
        """Sizes of the group that others have found already; None where it has to find them."""
        ...

    def join(self, layout: Layout, limits: StepLimits) -> tuple[RankLink | None, SlotState | None]:
        """The link to the others, and the state of the slots that they share. limits: of the group."""
        ...

    def pinned(self) -> AbstractContextManager[None]:
        """Threads that are made meanwhile stay on the cores of this rank."""
        ...


@dataclass(frozen=True)
class Alone:
    """The only one."""

    ranks: int = 1
    max_in_flight: int = 1
    limits: StepLimits | None = None

    @property
    def available_bytes(self) -> int:
        return available_bytes()

    def program(self, program: Program) -> Program:
        return rank_program(program, RankLayout(), 0)

    def sizes(self, program: Program) -> GroupSizes:
        return GroupSizes.of([program])

    def join(self, layout: Layout, limits: StepLimits) -> tuple[RankLink | None, SlotState | None]:
        del layout, limits
        return None, None

    def pinned(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(kw_only=True)
class Follower:
    """Rank `rank`, which joins what the engine's process has made: two files in memory, given by descriptor,
    and the sizes of a step and of what is exchanged."""

    rank: int
    hosts: HostLayout
    limits: StepLimits
    link_sizes: LinkSizes
    link_fd: int
    slots_fd: int
    cores: int
    wires: RankWires = NO_WIRES
    max_in_flight: int = 1
    """It waits for each step before it begins the next one."""

    @property
    def ranks(self) -> int:
        return self.hosts.each

    @property
    def available_bytes(self) -> int:
        return available_bytes()

    def program(self, program: Program) -> Program:
        return rank_program(program, self.hosts.ranks, self.rank)

    def sizes(self, program: Program) -> GroupSizes:
        return GroupSizes.of([program])

    def join(self, layout: Layout, limits: StepLimits) -> tuple[RankLink | None, SlotState | None]:
        """Raises MachineError where the sizes differ."""
        link = RankLink(
            layout,
            self.hosts,
            self.rank,
            self.link_sizes,
            cores=self.cores,
            fd=self.link_fd,
            wires=self.wires,
        )
        return link, SlotState.attach(self.slots_fd, limits, layout.program.vocab_size)

    def pinned(self) -> AbstractContextManager[None]:
        """The whole process is."""
        return nullcontext()
