"""A model beside drafts from the text: where it fails it is switched off alone, and no request ends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from firelane.contract import CAUSAL, NOTHING, StepLimits
from firelane.engine.speculation.ngram_first import SURE, NgramFirst
from firelane.engine.speculation.proposer import NO_PROPOSAL, Asked, FeatureReader, Proposal
from firelane.errors import MachineError
from tests.engine.driver import Driver
from tests.engine.oracle import Oracle
from tests.engine.speculation.test_head_schedules import SIZES, TellingChain
from tests.free_steps import make_steps_free

SEED = 7


class Text(Oracle):
    """Knows what comes, and is sure of it in every second step."""

    def __init__(self):
        super().__init__(SEED, (CAUSAL,), itertools.cycle([False]))
        self.turns = itertools.count()

    def propose(self, asked):
        sure = [Proposal(one.tokens[:2], 1.0) for one in super().propose(asked)]
        return sure if next(self.turns) % 2 else [NO_PROPOSAL] * len(asked)


class Failing(Oracle):
    """A model that reads features, and fails in one of its calls."""

    def __init__(self, call, after):
        super().__init__(SEED, (CAUSAL,), itertools.cycle([False]))
        self.call, self.left, self.calls, self.heard = call, after, [], []

    def propose(self, asked):
        self._called("propose")
        return [one._replace(tokens=one.tokens[:1]) for one in super().propose(asked)]

    def note_rows(self, computed):
        self._called("note_rows")
        assert all(len(run.features) for run in computed)

    def _called(self, name):
        self.calls.append(name)
        if name == self.call:
            if not self.left:
                raise MachineError("the device is gone")
            self.left -= 1

    def forget(self, tenant):
        self.heard.append(tenant)

    def standby(self):
        self.heard.append("standby")
        return NOTHING

    def wake(self):
        self.heard.append("wake")


@pytest.mark.parametrize("call", ["propose", "note_rows"])
@pytest.mark.parametrize("after", [0, 3])
def test_a_model_that_fails_is_switched_off_alone(request_of, alone, caplog, call, after):
    model = Failing(call, after)
    limits = StepLimits(**SIZES, block_size=4, num_blocks=64)
    d = Driver(TellingChain(limits), proposer=NgramFirst(Text(), model))
    drafter = d.core.drafter
    make_steps_free(drafter)
    sent = [request_of(i, range(9 + i), max_tokens=40, seed=SEED) for i in (1, 2)]
    d.submit(*sent)
    d.run()
    for request in sent:
        assert (d.tokens[request.id], d.reasons[request.id]) == alone(request, 60)
    assert model.calls.count(call) == after + 1
    assert drafter.is_on
    assert drafter.drafted_tokens == drafter.accepted_tokens > 30
    lines = [one.getMessage() for one in caplog.records if "speculation_off" in one.getMessage()]
    assert lines == ["speculation_off proposer=Failing"]
    assert model.heard == []


def test_memory_of_a_model_that_failed_is_not_taken_again():
    model, asked = Failing("propose", 0), [Asked(0, None, np.arange(3, dtype=np.int32), 4)]
    proposer = NgramFirst(Text(), model)
    proposer.standby()
    proposer.wake()
    assert proposer.propose(asked) == [NO_PROPOSAL]
    proposer.forget(b"a")
    proposer.standby()
    proposer.wake()
    assert model.heard == ["standby", "wake", b"a", "standby"]


def test_a_model_without_features_hears_of_no_rows():
    proposer = NgramFirst(Text(), Text())
    assert not isinstance(Text(), FeatureReader)
    proposer.note_rows(pytest.fail("asked for rows") for _ in range(1))


@pytest.mark.parametrize(("confidence", "is_asked"), [(SURE, False), (SURE - 0.01, True)])
def test_a_model_is_asked_where_the_text_is_not_sure(confidence, is_asked):
    class Known:
        def propose(self, asked):
            return [Proposal([5], confidence) for _ in asked]

    asked = [Asked(0, None, np.arange(3, dtype=np.int32), 4)]
    model = Failing("", 0)
    (found,) = NgramFirst(Known(), model).propose(asked)
    assert (model.calls == ["propose"]) == is_asked
    assert (found.tokens == [5]) != is_asked
