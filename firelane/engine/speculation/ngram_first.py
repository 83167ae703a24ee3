"""Drafts from the text where it repeats itself, and by a model elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Sequence as Several

from firelane.contract import GivenBack
from firelane.engine.speculation.proposer import (
    NO_PROPOSAL,
    Asked,
    ComputedRows,
    FeatureReader,
    Proposal,
    Proposer,
)

SURE = 0.7
"""Confidence of a proposal that the model is not asked beside."""
log = logging.getLogger(__name__)


class NgramFirst:
    """A Proposer and FeatureReader that asks a model only where the first proposer, which costs nothing, is
    not sure. A model that fails is not asked again, and the first one goes on alone."""

    def __init__(self, first: Proposer, model: Proposer) -> None:
        self._first, self.model = first, model
        self._reader = model if isinstance(model, FeatureReader) else None
        self._has_failed = False

    def propose(self, asked: Several[Asked]) -> list[Proposal]:
        found = self._first.propose(asked)
        unsure = [i for i, proposal in enumerate(found) if proposal.confidence < SURE]
        if unsure and not self._has_failed:
            drawn = self._drawn([asked[i] for i in unsure])
            for i, proposal in zip(unsure, drawn, strict=True):
                found[i] = proposal if proposal.tokens else found[i]
        return found

    def note_rows(self, computed: Iterable[ComputedRows]) -> None:
        if self._reader is None or self._has_failed:
            return
        try:
            self._reader.note_rows(computed)
        except Exception:
            self._give_up()

    def forget(self, tenant: bytes) -> None:
        self._first.forget(tenant)
        self.model.forget(tenant)

    def standby(self) -> GivenBack:
        return self.model.standby()

    def wake(self) -> None:
        """A model that has failed leaves its memory to others."""
        if not self._has_failed:
            self.model.wake()

    def _drawn(self, asked: Several[Asked]) -> list[Proposal]:
        try:
            return self.model.propose(asked)
        except Exception:
            self._give_up()
            return [NO_PROPOSAL] * len(asked)

    def _give_up(self) -> None:
        log.exception("speculation_off proposer=%s", type(self.model).__name__)
        self._has_failed = True
