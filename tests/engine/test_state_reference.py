"""A hybrid of full, window and chunk attention and recurrent state, run by the reference through the engine:
the same tokens alone, in a crowd, in any chunks, from a hit at every block, preempted, aborted beside,
resumed."""

from __future__ import annotations

import numpy as np
import pytest

from firelane.contract import CAUSAL
from firelane.kv import SnapshotRule
from tests.engine.reference_model import SPANS, PagedReference, toy_program
from tests.engine.resume import resumed

SIZES = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "max_output_rows": 8,
    "max_model_len": 96,
    "block_size": 4,
    "num_blocks": 300,
    "num_snapshots": 12,
}
HYBRIDS = {"full window chunk": SPANS, "full": (CAUSAL,)}
NARROW = {SPANS: 44, (CAUSAL,): 24}
"""Pages that are too few for all."""
EVERY_BLOCK = SnapshotRule(interval=4, at_least=1)


@pytest.fixture(scope="module", params=HYBRIDS.values(), ids=HYBRIDS)
def spans(request):
    return request.param


@pytest.fixture
def hybrid(driver, spans, tiles):
    """Engines on the toy, with small tiles of keys."""
    program = toy_program(spans)

    def make(prefix_cache=True, max_in_flight=1, snapshots=EVERY_BLOCK, **sizes):
        executor = PagedReference(program, max_in_flight=max_in_flight, **(SIZES | sizes))
        return driver(executor, prefix_cache, snapshots=snapshots)

    with tiles(4):
        yield make


def requests(request_of, count):
    """Some share a beginning, some are greedy."""
    random = np.random.default_rng(count)
    begin = random.integers(0, 50, 24)
    return [
        request_of(
            i,
            [*begin[: random.integers(0, 25)], *random.integers(0, 50, random.integers(1, 12))],
            max_tokens=int(random.integers(4, 20)),
            temperature=float(i % 2),
            logprobs=1,
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def known():
    """Answers that `alone` has computed."""
    return {}


@pytest.fixture
def alone(hybrid, spans, known):
    """Tokens and log-probabilities of a request that has an engine without a cache for itself."""

    def run(request):
        key = (spans, request)
        if str(key) not in known:
            d = hybrid(prefix_cache=False, max_num_seqs=1, max_num_batched_tokens=96)
            d.submit(request)
            d.run()
            known[str(key)] = said(d, request.id)
        return known[str(key)]

    return run


def said(d, request_id):
    return d.tokens[request_id], [entry.logprob for entry in d.logprobs[request_id]]


def check(d, request, alone):
    """A matrix product of NumPy may round a row otherwise beside other rows."""
    tokens, logprobs = said(d, request.id)
    expected_tokens, expected = alone(request)
    assert tokens == expected_tokens
    np.testing.assert_allclose(logprobs, expected, atol=1e-4)


@pytest.mark.parametrize(("slots", "budget"), [(4, 24), (1, 1), (2, 7), (3, 64)])
def test_in_a_crowd_and_in_any_chunks(hybrid, request_of, alone, slots, budget):
    d = hybrid(max_num_seqs=slots, max_num_batched_tokens=budget, max_output_rows=slots, max_in_flight=2)
    sent = requests(request_of, 5)
    for request in sent:
        d.submit(request)
        d.step()
    d.run()
    for request in sent:
        check(d, request, alone)
    assert d.frames[-1].stats.state_snapshot_hits > 0


def test_a_hit_at_every_block(hybrid, request_of, alone):
    prompt = [(7 * i) % 50 for i in range(40)]
    d = hybrid(num_snapshots=40)
    d.submit(request_of(0, prompt, max_tokens=1))
    d.run()
    for length in range(1, 41, 4):
        request = request_of(length, [*prompt[:length], 49], max_tokens=5, logprobs=1)
        d.submit(request)
        d.run()
        assert d.cached[length] == length // 4 * 4
        check(d, request, alone)


def test_preempted(hybrid, spans, request_of, alone):
    d = hybrid(num_blocks=NARROW[spans])
    sent = [request_of(i, [i, *range(8)], max_tokens=40, logprobs=1) for i in range(3)]
    d.submit(*sent)
    d.run()
    assert d.frames[-1].stats.preemptions > 0
    for request in sent:
        check(d, request, alone)


def test_beside_one_that_is_aborted(hybrid, request_of, alone):
    sent = requests(request_of, 5)
    d = hybrid(max_in_flight=2)
    d.submit(*sent)
    for _ in range(4):
        d.step()
    d.abort(0)
    d.abort(3)
    d.run()
    for request in sent:
        if d.reasons[request.id] != "abort":
            check(d, request, alone)
    assert "abort" in d.reasons.values()


def test_resumed_after_every_cut(hybrid, request_of, alone):
    request = request_of(1, [(3 * i) % 50 for i in range(21)], max_tokens=12, logprobs=1)
    tokens, logprobs = alone(request)
    d = hybrid()
    d.submit(*(resumed(request, tokens[:cut], 100 + cut) for cut in range(1, 12)))
    d.run()
    for cut in range(1, 12):
        assert d.tokens[100 + cut] == tokens[cut:]
        np.testing.assert_allclose([e.logprob for e in d.logprobs[100 + cut]], logprobs[cut:], atol=1e-4)


def test_the_next_turns_of_a_conversation(hybrid, request_of, alone):
    d = hybrid(snapshots=SnapshotRule(at_least=4))
    prompt = [(11 * i) % 50 for i in range(10)]
    for turn in range(4):
        request = request_of(turn, prompt, max_tokens=9, logprobs=1)
        d.submit(request)
        d.run()
        assert (d.cached[turn] > 0) == (turn > 0)
        check(d, request, alone)
        prompt = [*prompt, *d.tokens[turn], turn, 40]
