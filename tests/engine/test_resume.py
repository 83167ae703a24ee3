"""Requests that another engine began: cut at every position, the tokens that follow are the same."""

from __future__ import annotations

import msgspec
import pytest

from firelane.backends.null.executor import NullExecutor
from firelane.contract import StepLimits
from tests.engine.resume import resumed

VARIETIES = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 7},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "logprobs": {"logprobs": 3},
    "scored prompt": {"logprobs": 2, "prompt_logprobs": 2},
    "stop": {"stop_token_ids": [33]},
    "min_tokens": {"stop_token_ids": list(range(0, 48, 4)), "min_tokens": 6},
    "to the end of the context": {"max_tokens": 100},
}


def outcome(d, request_id):
    entries = [msgspec.structs.replace(entry, id=0) for entry in d.logprobs.get(request_id, [])]
    return d.tokens.get(request_id, []), d.reasons[request_id], entries


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("fields", VARIETIES.values(), ids=VARIETIES)
def test_the_same_tokens_after_every_cut(driver, request_of, fields, prefix_cache):
    request = request_of(1, range(9), **{"seed": 3, "max_tokens": 16, **fields})
    whole = driver()
    whole.submit(request)
    whole.run()
    tokens, reason, entries = outcome(whole, 1)
    assert len(tokens) >= 4
    d = driver(prefix_cache=prefix_cache, num_blocks=64)
    d.submit(*(resumed(request, tokens[:cut], 100 + cut) for cut in range(1, len(tokens))))
    d.run()
    for cut in range(1, len(tokens)):
        rest = [entry for entry in entries if entry.position >= 9 + cut]
        assert outcome(d, 100 + cut) == (tokens[cut:], reason, rest)


def test_on_the_null_backend(driver, request_of):
    limits = StepLimits(
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_output_rows=8,
        max_model_len=64,
        block_size=4,
        num_blocks=256,
    )
    request = request_of(1, range(5), seed=11, max_tokens=30, stop_token_ids=[3], logprobs=1)
    whole = driver(NullExecutor(limits, 97))
    whole.submit(request)
    whole.run()
    tokens, reason, entries = outcome(whole, 1)
    d = driver(NullExecutor(limits, 97))
    d.submit(*(resumed(request, tokens[:cut], cut) for cut in range(1, len(tokens))))
    d.run()
    for cut in range(1, len(tokens)):
        assert outcome(d, cut)[:2] == (tokens[cut:], reason)
        assert [e.position for e in outcome(d, cut)[2]] == [e.position for e in entries[cut:]]


def test_a_resumed_request_is_preempted_as_any_other(driver, request_of):
    requests = [request_of(i, range(i, i + 6), max_tokens=18) for i in range(3)]
    whole = driver()
    whole.submit(*requests)
    whole.run()
    d = driver(num_blocks=8, max_num_seqs=3, max_output_rows=3)
    d.submit(*(resumed(request, whole.tokens[request.id][:5], request.id) for request in requests))
    d.run()
    assert d.frames[-1].stats.preemptions > 0
    assert {i: d.tokens[i] for i in range(3)} == {i: whole.tokens[i][5:] for i in range(3)}


@pytest.mark.parametrize("max_tokens", [3, 2])
def test_a_request_whose_end_alone_was_lost_ends(driver, request_of, max_tokens):
    d = driver()
    d.submit(resumed(request_of(1, range(4), max_tokens=max_tokens), [1, 2, 3], 1))
    d.run()
    assert outcome(d, 1) == ([], "length", [])


@pytest.mark.parametrize(("start", "pooling"), [(0, None), (5, None), (2, "last")])
def test_an_output_that_cannot_be_is_refused(driver, request_of, start, pooling):
    d = driver()
    d.submit(msgspec.structs.replace(request_of(1, range(4), pooling=pooling), output_start=start))
    d.run()
    assert "output_start" in d.rejected[1]


def test_the_prompt_alone_may_be_said_to_be_one(driver, request_of, alone):
    request = request_of(1, range(4))
    d = driver()
    d.submit(resumed(request, [], 1))
    d.run()
    assert (d.tokens[1], d.reasons[1]) == alone(request, 64)
