"""The processes of a group of ranks, as loaders see them: what a process runs of the model, how large its
steps are, and the slots' state that it shares with the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from firelane.contract import SlotState, Span, StepLimits
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.program import Program

ONE_HOST = HostLayout(ranks=RankLayout())


@dataclass(frozen=True, kw_only=True)
class GroupSizes:
    """Sizes that limits are resolved for (contract.resolve.ModelSizes): of the rank that needs most memory
    for a page, or whose part of one is largest, and of the one that needs most for a sequence."""

    max_model_len: int
    spans: tuple[Span, ...]
    kv_bytes_per_token: int
    state_bytes: int
    weights_bytes: int
    """Bytes of the weights of all ranks of a machine, before they are packed."""

    @classmethod
    def of(cls, programs: Collection[Program], hosts: int = 1) -> GroupSizes:
        """The sizes of ranks that run `programs`, on so many machines."""
        first = next(iter(programs))
        return cls(
            max_model_len=first.max_model_len,
            spans=first.spans,
            kv_bytes_per_token=max(-(-own.kv_bytes_per_token // own.row_ranks) for own in programs),
            state_bytes=max(program.state_bytes for program in programs),
            weights_bytes=sum(program.weights_bytes for program in programs) // hosts,
        )


def limits_of(program: Program, limits: StepLimits) -> StepLimits:
    """Limits of one rank: it has as many pages and states as the group, however large they are here."""
    return replace(limits, spans=program.spans, state_bytes=program.state_bytes)


@dataclass(kw_only=True)
class Member:
    """A process of a group of ranks. This class is the only one of its model; Follower and Leader are of
    several."""

    hosts: HostLayout = ONE_HOST
    rank: int = 0
    limits: StepLimits | None = None
    """Sizes of the group that another process has found; None where the loader has to find them."""
    is_segmented: bool = True
    """Whether sums are those of any number of ranks."""

    @property
    def max_in_flight(self) -> int:
        """Steps that may be submitted before the first of them has ended."""
        return 1

    def programs(self, whole: Program) -> Mapping[int, Program]:
        """By rank, the part of the model of this rank, and of those for whose memory this one finds sizes.
        Raises UsageError for sizes that no cut exists for."""
        own = rank_program(whole, self.hosts.ranks, self.rank) if self.is_segmented else whole
        return {self.rank: own}

    def join(self, limits: StepLimits, vocab_size: int) -> SlotState | None:
        """The state of the slots that all ranks share, once the sizes of the group are known; None of the
        only rank."""
        del limits, vocab_size

    def meet_loaded(self) -> None:
        """The weights are there: returns when the others may be met. Raises MachineError where one of them
        is gone."""


@dataclass(kw_only=True)
class Follower(Member):
    """A rank that joins what the leader has made."""

    slots_fd: int
    tell_loaded: Callable[[], None]

    def join(self, limits: StepLimits, vocab_size: int) -> SlotState:
        return SlotState.attach(self.slots_fd, limits, vocab_size)

    def meet_loaded(self) -> None:
        """The leader waits for this; what needs all ranks meets them itself."""
        self.tell_loaded()
