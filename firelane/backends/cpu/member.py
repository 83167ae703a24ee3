"""Members of a group of ranks, as the loader sees them: what a process runs of the model, how large its steps
are, and what it shares with the others. A model's only process is a group of one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.link import RankLink
from firelane.contract import SlotState, StepLimits
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.program import Program


class Member(Protocol):
    """One process of a group."""

    @property
    def ranks(self) -> int: ...

    def program(self, program: Program) -> Program:
        """Its part of the whole model. Raises UsageError for sizes that no cut exists for."""
        ...

    def limits(self, program: Program) -> StepLimits | None:
        """Sizes that others have found already; None where it has to find them."""
        ...

    def join(self, layout: Layout) -> tuple[RankLink | None, SlotState | None]:
        """The link to the others, and the state of the slots that they share."""
        ...

    def pinned(self) -> AbstractContextManager[None]:
        """Threads that are made meanwhile stay on the cores of this rank."""
        ...


@dataclass(frozen=True)
class Alone:
    """The only one."""

    ranks: int = 1

    def program(self, program: Program) -> Program:
        return rank_program(program, RankLayout(), 0)

    def limits(self, program: Program) -> StepLimits | None:
        del program
        return None

    def join(self, layout: Layout) -> tuple[RankLink | None, SlotState | None]:
        del layout
        return None, None

    def pinned(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(kw_only=True)
class Follower:
    """Rank `rank`, which joins what the first rank has made: two files in memory, given by descriptor, and
    the sizes of a step."""

    rank: int
    layout: RankLayout
    sizes: StepLimits
    link_fd: int
    slots_fd: int
    cores: int
    link: RankLink | None = field(default=None, init=False)

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    def program(self, program: Program) -> Program:
        return rank_program(program, self.layout, self.rank)

    def limits(self, program: Program) -> StepLimits | None:
        """As many pages as the first rank has, however large they are here."""
        return replace(self.sizes, spans=program.spans, state_bytes=program.state_bytes)

    def join(self, layout: Layout) -> tuple[RankLink | None, SlotState | None]:
        """Raises MachineError where the sizes differ."""
        self.link = RankLink(layout, self.rank, self.ranks, cores=self.cores, fd=self.link_fd)
        state = SlotState.attach(self.slots_fd, layout.limits, layout.program.vocab_size)
        return self.link, state

    def pinned(self) -> AbstractContextManager[None]:
        """The whole process is."""
        return nullcontext()
