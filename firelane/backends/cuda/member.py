"""Members of a group of ranks, as the loader sees them: what a process runs of the model, how large its steps
are, and what it shares with the others. A model's only process is a group of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from firelane.contract import SlotState, StepLimits
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.program import Program


class Member(Protocol):
    """One process of a group."""

    @property
    def ranks(self) -> int: ...

    def others(self, program: Program) -> tuple[Program, ...]:
        """Parts of the whole model that other stages have, one of each: their devices need as many pages. Of
        a member that finds the sizes."""
        ...

    def program(self, program: Program) -> Program:
        """Its part of the whole model. Raises UsageError for sizes that no cut exists for."""
        ...

    def limits(self, program: Program) -> StepLimits | None:
        """Sizes that others have found already; None where it has to find them."""
        ...

    def join(self, limits: StepLimits, vocab_size: int) -> SlotState | None:
        """The state of the slots that all share, once the sizes are known."""
        ...

    def meet_loaded(self) -> None:
        """Weights are there: go on when those of all others are, too. Raises MachineError."""
        ...


@dataclass(frozen=True)
class Alone:
    """The only one. is_segmented: its sums are those of any number of ranks."""

    is_segmented: bool = False
    ranks: int = 1

    def others(self, program: Program) -> tuple[Program, ...]:
        del program
        return ()

    def program(self, program: Program) -> Program:
        return rank_program(program, RankLayout(), 0) if self.is_segmented else program

    def limits(self, program: Program) -> StepLimits | None:
        del program
        return None

    def join(self, limits: StepLimits, vocab_size: int) -> SlotState | None:
        del limits, vocab_size
        return None

    def meet_loaded(self) -> None:
        """At once."""


@dataclass(frozen=True, kw_only=True)
class Follower:
    """Rank `rank`, which joins what the first rank has made: the state of the slots, in a file in memory, and
    the sizes of a step. tell_loaded: says so to the first rank."""

    rank: int
    layout: RankLayout
    sizes: StepLimits
    slots_fd: int
    tell_loaded: Callable[[], None]

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    def others(self, program: Program) -> tuple[Program, ...]:
        del program
        return ()

    def program(self, program: Program) -> Program:
        return rank_program(program, self.layout, self.rank)

    def limits(self, program: Program) -> StepLimits | None:
        """As many pages as the first rank has, however large they are here."""
        return replace(self.sizes, spans=program.spans, state_bytes=program.state_bytes)

    def join(self, limits: StepLimits, vocab_size: int) -> SlotState | None:
        return SlotState.attach(self.slots_fd, limits, vocab_size)

    def meet_loaded(self) -> None:
        """The first rank waits for this; what needs all of them meets them itself."""
        self.tell_loaded()
