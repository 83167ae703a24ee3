"""The proposer of an engine, by its configuration."""

from __future__ import annotations

from typing import NamedTuple

from firelane.backends import resolve
from firelane.contract import Executor
from firelane.engine.speculation.draft_model import DraftModel
from firelane.engine.speculation.draft_steps import DraftSteps
from firelane.engine.speculation.heads.head_proposer import head_proposer
from firelane.engine.speculation.heads.head_rows import HeadRows
from firelane.engine.speculation.ngram import NgramProposer
from firelane.engine.speculation.ngram_first import NgramFirst
from firelane.engine.speculation.proposer import Proposer
from firelane.engine_config import EngineConfig

MOST_DRAFTING = 8
"""Sequences of a model with recurrent state that have a draft at a time, at most: more of them fill the
machine, and each has a spare state."""


def spare_states(config: EngineConfig) -> int:
    """Spare states that an engine wants for its drafts, if its model keeps recurrent state."""
    return 0 if _kind(config) == "off" else MOST_DRAFTING


class SecondModel(NamedTuple):
    """The drafter beside a model: a draft model, or a head, which has `rows`, and an executor for each of its
    layers. Whoever loads it releases it."""

    executors: tuple[Executor, ...]
    rows: HeadRows | None = None

    @property
    def weights_bytes(self) -> int:
        return sum(one.weights_bytes for one in self.executors)

    @property
    def kv_bytes(self) -> int:
        return sum(one.kv_bytes for one in self.executors)

    def settle(self) -> None:
        """Return when nothing works beside the steps, as Executor.settle does."""
        for one in self.executors:
            one.settle()

    def release(self) -> None:
        """Free threads and memory; idempotent."""
        for one in self.executors:
            one.release()

    def proposer(self, served: Executor) -> Proposer:
        """Raises UsageError where it cannot draft for `served`."""
        if self.rows is not None:
            return head_proposer(self.executors, self.rows, served)
        return DraftModel(DraftSteps(self.executors[0], served))


def make_proposer(
    config: EngineConfig, executor: Executor, second: SecondModel | None = None
) -> Proposer | None:
    """The proposer of an engine; None where nothing is drafted. second: what drafts, where the configuration
    names it."""
    if second is not None:
        return NgramFirst(NgramProposer(), second.proposer(executor))
    return NgramProposer() if _kind(config) == "ngram" else None


def _kind(config: EngineConfig) -> str:
    """The kind that the configuration asks for. "auto" drafts where that was measured to cost nothing when
    drafts fail: on CPUs."""
    if config.speculative != "auto":
        return config.speculative
    return "ngram" if resolve(config.backend) == "cpu" else "off"
