"""A draft model beside a served one: the chain model drafts its own tokens, through mirrored pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, StepLimits, Window
from firelane.engine.speculation.draft_model import DraftModel
from firelane.engine.speculation.draft_steps import DraftSteps
from firelane.errors import MachineError
from firelane.kv.prefix import PrefixChain, tenant_id
from firelane.wire.frames import Abort
from tests.engine.chain_model import ChainExecutor
from tests.engine.driver import Driver
from tests.free_steps import make_steps_free

SIZES = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 40,
    "max_output_rows": 40,
    "max_model_len": 64,
    "block_size": 4,
    "num_blocks": 64,
}


class Scene:
    """An engine whose drafts come from a second executor of the same model; steps take no time."""

    def __init__(self, *, draft_spans=(CAUSAL,), draft_batched=None, **sizes):
        depth, is_pipelined = sizes.pop("flight", (1, False))
        vocabularies = sizes.pop("vocabularies", {})
        limits = StepLimits(**(SIZES | sizes))
        pages = len(draft_spans) * limits.num_blocks
        own = {"num_blocks": pages, "spans": draft_spans, "max_num_batched_tokens": draft_batched}
        own |= {"state_bytes": 0, "num_snapshots": 0, "num_spares": 0}
        own = {key: value for key, value in own.items() if value is not None}
        self.served = ChainExecutor(limits, depth, is_pipelined)
        self.second = ChainExecutor(StepLimits(**(SIZES | sizes | own)))
        for name, size in vocabularies.items():
            getattr(self, name).vocab_size = size
        self.steps = DraftSteps(self.second, self.served)
        self.d = Driver(self.served, proposer=DraftModel(self.steps, clock=lambda: 0.0))
        self.drafter = self.d.core.drafter
        make_steps_free(self.drafter)

    def has_known(self, sequence_tokens, salt=b""):
        """Leading pages of the text that some page of the draft's is said to hold."""
        names = PrefixChain(salt, self.steps.limits.block_size).names(
            np.array(sequence_tokens, np.int32), len(sequence_tokens) // self.steps.limits.block_size
        )
        return sum(name in self.steps._tags._names for name in names)

    def run(self, *requests):
        self.d.submit(*requests)
        self.d.run()

    @property
    def counts(self):
        return self.drafter.drafted_tokens, self.drafter.accepted_tokens


def test_the_same_model_drafts_what_is_drawn(request_of, alone):
    scene = Scene()
    request = request_of(1, range(9), max_tokens=50)
    scene.run(request)
    assert (scene.d.tokens[1], scene.d.reasons[1]) == alone(request, 64)
    drafted, accepted = scene.counts
    assert drafted == accepted > 30
    assert scene.served.steps < 20


def test_a_prefix_that_sequences_share_is_computed_once(request_of, alone):
    scene = Scene(num_blocks=80)
    prompt = [*range(32), 1]
    first = request_of(1, prompt, max_tokens=12)
    scene.run(first)
    computed = scene.second.computed_tokens
    others = [request_of(i, [*range(32), i], max_tokens=12) for i in (2, 3, 4)]
    scene.run(*others)
    for request in (first, *others):
        assert scene.d.tokens[request.id] == alone(request, 64)[0]
    assert scene.second.computed_tokens - computed < 3 * 20
    assert scene.counts[0] == scene.counts[1]


spans = st.sampled_from([(CAUSAL,), (CAUSAL,), (CAUSAL, Window(5)), (Window(5), CAUSAL)])
sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "max_output_rows": st.integers(4, 30),
        "max_num_batched_tokens": st.integers(4, 40),
        "max_model_len": st.just(60),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "flight": st.sampled_from([(1, False), (2, False), (2, True), (3, True)]),
    }
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 2), min_size=1, max_size=24),
        "max_tokens": st.integers(1, 24),
        "min_tokens": st.integers(0, 3),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=4, unique=True),
        "salt": st.sampled_from([b"", b"other"]),
        "tenant": st.sampled_from(["a", "b"]),
        "seed": st.just(7),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    sizes=sizes,
    pages=st.integers(0, 40),
    sent=st.lists(requests, min_size=1, max_size=8),
    aborted=st.sets(st.integers(0, 7), max_size=2),
    forgotten=st.booleans(),
    spans=spans,
    draft_spans=spans,
    states=st.sampled_from([{}, {}, {"state_bytes": 64, "num_spares": 2, "num_snapshots": 4}]),
)
def test_all_get_their_tokens_whatever_is_shared_preempted_or_forgotten(
    request_of, alone, sizes, pages, sent, aborted, forgotten, spans, draft_spans, states
):
    """Drafted tokens are all right where the models are alike: a wrong page would draw another."""
    sizes = sizes | states | {"num_blocks": len(spans) * (60 // sizes["block_size"] + 1) + pages}
    scene = Scene(draft_spans=draft_spans, spans=spans, **sizes)
    sent = [request_of(i, **fields) for i, fields in enumerate(sent)]
    scene.d.submit(*sent)
    for _ in range(5):
        scene.d.step()
    scene.d.channel.arrived.append(Abort(sorted(aborted)))
    if forgotten:
        scene.drafter.forget(tenant_id("a"))
    scene.d.run()
    for request in sent:
        tokens, reason = alone(request, 60, spans=spans, has_state=bool(states))
        got = scene.d.tokens.get(request.id, [])
        if request.id in aborted and scene.d.reasons[request.id] == "abort":
            assert got == tokens[: len(got)]
        else:
            assert (got, scene.d.reasons[request.id]) == (tokens, reason)
    if spans == draft_spans and not states and not aborted:
        assert scene.counts[0] == scene.counts[1]


@pytest.mark.parametrize("batched", [4, 7, 40])
def test_a_long_prompt_is_caught_up_with_in_steps_of_its_own(request_of, alone, batched):
    scene = Scene(draft_batched=batched)
    request = request_of(1, [i % 7 for i in range(40)], max_tokens=24)
    scene.run(request)
    assert scene.d.tokens[1] == alone(request, 64)[0]
    assert scene.counts[0] == scene.counts[1] > 0


def test_a_failing_executor_ends_no_request(request_of, alone, caplog):
    scene = Scene()
    requests = [request_of(i, range(9 + i), max_tokens=30) for i in (1, 2)]
    scene.d.submit(*requests)
    for _ in range(4):
        scene.d.step()

    def lost():
        raise MachineError("the device is gone")

    scene.second.wait = lost
    scene.d.run()
    for request in requests:
        assert scene.d.tokens[request.id] == alone(request, 64)[0]
    assert not scene.drafter.is_on
    assert "speculation_off proposer=DraftModel" in caplog.text


def test_a_forgotten_tenant_leaves_no_names(request_of, alone):
    scene = Scene()
    texts = {"a": list(range(20)), "b": list(range(20, 40))}
    for i, (tenant, text) in enumerate(texts.items()):
        scene.run(request_of(i, text, tenant=tenant, max_tokens=12))
    assert scene.has_known(texts["a"]) == scene.has_known(texts["b"]) == 5
    scene.drafter.forget(tenant_id("a"))
    assert (scene.has_known(texts["a"]), scene.has_known(texts["b"])) == (0, 5)
    scene.drafter.forget(tenant_id("b"))
    assert not scene.second.state.tokens.any()
    request = request_of(3, texts["a"], tenant="a", max_tokens=12)
    scene.run(request)
    assert scene.d.tokens[3] == alone(request, 64)[0]


def test_standby_loses_all_pages(request_of, alone):
    scene = Scene()
    scene.run(request_of(1, range(20), max_tokens=12))
    assert scene.has_known(range(20)) == 5
    scene.drafter.standby()
    assert scene.second.sleeps
    assert scene.has_known(range(20)) == 0
    scene.second.kv.fill(-1)
    scene.drafter.wake()
    assert not scene.second.sleeps
    request = request_of(2, range(20), max_tokens=12)
    scene.run(request)
    assert scene.d.tokens[2] == alone(request, 64)[0]
    assert scene.counts[0] == scene.counts[1]


def test_another_salt_finds_nothing(request_of):
    scene = Scene()
    scene.run(request_of(1, range(20), max_tokens=4))
    assert scene.has_known(range(20)) == 5
    assert scene.has_known(range(20), b"other") == 0


def test_a_token_that_the_draft_model_does_not_know_ends_drafts(request_of, alone):
    scene = Scene(vocabularies={"second": 40})
    bias = [(44, 1.0), (2, 1.0)]
    request = request_of(1, range(9), max_tokens=30, stop_token_ids=[3, 45], min_tokens=29, logit_bias=bias)
    scene.run(request)
    tokens = alone(request, 64)[0]
    assert scene.d.tokens[1] == tokens
    unknown = next(i for i, token in enumerate(tokens) if token >= 40)
    assert scene.second.computed_tokens <= 9 + unknown + 8
    row = scene.second.state.sampling[0]
    assert (row["num_stop_ids"], row["num_bias"]) == (1, 1)
    assert (scene.second.state.stop_ids[0, 0], scene.second.state.bias_ids[0, 0]) == (3, 2)


def test_no_token_is_verified_that_the_served_model_does_not_know(request_of, alone):
    scene = Scene(vocabularies={"served": 40})
    request = request_of(1, range(9), max_tokens=50)
    drafted = []
    propose = scene.drafter._proposer.propose

    def proposed(asked):
        found = propose(asked)
        drafted.extend(token for one in found for token in one.tokens)
        return found

    scene.drafter._proposer.propose = proposed
    scene.run(request)
    assert scene.d.tokens[1] == alone(request, 64)[0]
    assert drafted
    assert max(drafted) < 40 <= max(scene.d.tokens[1])


def test_a_price_of_drafting_shortens_drafts(request_of):
    """A draft model that takes as long as the served one is of no use."""
    now = iter(range(10**6))
    scene = Scene()
    scene.drafter._proposer._clock = lambda: float(next(now))
    scene.drafter.times.seconds = lambda _: 1.0
    scene.run(request_of(1, range(9), max_tokens=50))
    assert scene.drafter.drafted_tokens < 12
