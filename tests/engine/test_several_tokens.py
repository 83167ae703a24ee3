"""Drafts change no token: whatever is drafted, each request gets the tokens that it gets one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL
from firelane.engine.speculation.ngram import NgramProposer
from firelane.wire.frames import Abort
from tests.engine.oracle import Oracle

sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "max_output_rows": st.integers(4, 30),
        "max_num_batched_tokens": st.integers(4, 40),
        "max_model_len": st.just(60),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "num_blocks": st.integers(61, 90),
    }
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 9), min_size=1, max_size=20),
        "max_tokens": st.integers(1, 20),
        "min_tokens": st.integers(0, 3),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=4, unique=True),
        "logprobs": st.sampled_from([-1, -1, 2]),
        "seed": st.just(7),
    }
)
flights = st.sampled_from([(1, False), (2, False), (2, True), (3, True)])


@settings(max_examples=200, deadline=None)
@given(
    sizes=sizes,
    pages=st.integers(0, 60),
    sent=st.lists(requests, max_size=8),
    errors=st.lists(st.booleans(), max_size=80),
    flight=flights,
    aborted=st.sets(st.integers(0, 7), max_size=2),
)
def test_all_get_the_tokens_that_they_get_one_by_one(
    driver, request_of, alone, sizes, pages, sent, errors, flight, aborted
):
    sizes = sizes | {"num_blocks": max(60 // sizes["block_size"] + 1, sizes["num_blocks"] - pages)}
    wrong = iter(errors)
    depth, is_pipelined = flight
    d = driver(
        proposer=Oracle(7, (CAUSAL,), wrong),
        max_in_flight=depth,
        is_pipelined=is_pipelined,
        **sizes,
    )
    sent = [request_of(i, **fields) for i, fields in enumerate(sent)]
    d.submit(*sent)
    for _ in range(4):
        d.step()
    d.channel.arrived.append(Abort(sorted(aborted)))
    d.run()
    for request in sent:
        tokens, reason = alone(request, 60)
        got = d.tokens.get(request.id, [])
        if request.id in aborted and d.reasons[request.id] == "abort":
            assert got == tokens[: len(got)]
        else:
            assert (got, d.reasons[request.id]) == (tokens, reason)
        if request.sampling.logprobs >= 0:
            assert [entry.token for entry in d.logprobs.get(request.id, [])] == got
            at = [entry.position for entry in d.logprobs.get(request.id, [])]
            assert at == list(range(len(request.prompt) // 4, len(request.prompt) // 4 + len(got)))


def test_several_tokens_take_fewer_steps(driver, request_of, alone):
    d = driver(
        proposer=Oracle(1, (CAUSAL,), iter(())),
        max_output_rows=40,
        max_num_batched_tokens=40,
        block_size=16,
    )
    request = request_of(1, range(5), max_tokens=40)
    d.submit(request)
    d.run()
    assert d.tokens[1] == alone(request, 64)[0]
    assert d.executor.steps <= 8
    assert max(count for f in d.frames for count in f.counts) > 4


@pytest.mark.parametrize("prompt", [[3, 1, 4, 1, 5] * 6, list(range(30))])
def test_prompt_lookup_changes_nothing(driver, request_of, alone, prompt):
    d = driver(proposer=NgramProposer(), max_output_rows=40, max_num_batched_tokens=40)
    request = request_of(1, prompt, max_tokens=30)
    d.submit(request)
    d.run()
    assert (d.tokens[1], d.reasons[1]) == alone(request, 64)


def test_what_comes_while_a_draft_is_verified_joins_the_next_step(driver, request_of):
    d = driver(
        proposer=Oracle(1, (CAUSAL,), iter(())), max_output_rows=40, max_num_batched_tokens=40, block_size=16
    )
    d.submit(request_of(1, range(5), max_tokens=50))
    while not d.core._in_flight or d.core._in_flight[0].plan.drafts is None:
        d.step()
    wait = d.executor.wait

    def waiting():
        d.submit(request_of(2, range(4), max_tokens=2))
        d.executor.wait = wait
        return wait()

    d.executor.wait = waiting
    d.step()
    assert [chunk.sequence.id for chunk in d.core._in_flight[0].plan.chunks] == [2]
