"""The interface between the scheduler and a scheduling policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from firelane.engine.policies.forecast import LateSequence
from firelane.engine.policies.lifecycle import SequenceLifecycle
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.step.draft import PlanDraft
from firelane.engine.step.plan import StepPlan


class StepQuota(Protocol):
    """The part of one step that each sequence may take. Made for one draft of a plan; keeps what the draft
    spends to itself."""

    def choose_decodes(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slots that decode, of those that could."""
        ...

    def spend_decodes(self, slots: NDArray[np.int64]) -> None:
        """One token for each of these slots is planned."""
        ...

    def prefills(self) -> Iterator[Sequence]:
        """Sequences in a slot whose prompt is not computed yet, in order. Each is to be spent before the
        next is taken."""
        ...

    def next_waiting(self) -> Sequence | None:
        """The sequence to admit next; None where none may be."""
        ...

    def spare_pages(self, sequence: Sequence) -> int:
        """Pages that must stay free when this one is admitted."""
        ...

    def tokens_for(self, sequence: Sequence) -> int:
        """Token rows of the step that are left to this sequence."""
        ...

    def spend(self, sequence: Sequence, tokens: int) -> None:
        """A prefill chunk of so many tokens is planned. The draft counts its tokens itself."""
        ...


class SchedulingPolicy(SequenceLifecycle, Protocol):
    """Order of the waiting queue, limit of tokens in a step, choice of whom to preempt, and the bill."""

    def open_step(self, draft: PlanDraft) -> StepQuota:
        """The quota of a step that is about to be planned. May first admit arriving requests, and preempt
        others for them, in the draft."""
        ...

    def victim(self, draft: PlanDraft) -> Sequence:
        """The running sequence to preempt when one lacks pages: it may be that one itself."""
        ...

    def step_ended(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens has taken so long."""
        ...

    def drew(self, sequences: int, tokens: int) -> None:
        """A step of an engine that drafts gave so many sequences so many tokens."""
        ...

    def unreachable(self, prefilling: Iterable[Sequence]) -> list[LateSequence]:
        """Waiting sequences that cannot keep their deadlines any more: the caller refuses them. prefilling:
        those whose prompt is being computed."""
        ...

    def charge(self, plan: StepPlan, accounts: NDArray[np.int64]) -> None:
        """The plan's tokens are being computed. accounts: by slot."""
        ...

    def num_running_background(self) -> int: ...
