"""Prompts whose chunks are short beside other requests (NewRequest.chunk_tokens): the limit holds in every
step, and costs nobody a token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.engine.policies.fcfs import FcfsPolicy

sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_output_rows": st.integers(5, 9),
        "max_num_batched_tokens": st.integers(5, 24),
        "max_model_len": st.integers(12, 60),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "num_blocks": st.integers(8, 40),
        "max_in_flight": st.sampled_from([1, 2]),
    }
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 49), min_size=1, max_size=40),
        "tenant": st.sampled_from("aab"),
        "background": st.sampled_from([False, False, True]),
        "seed": st.integers(0, 3),
        "chunk_tokens": st.integers(0, 6),
        "max_tokens": st.integers(1, 20),
        "prompt_logprobs": st.sampled_from([-1, -1, -1, 1]),
    }
)
turns = st.tuples(st.lists(requests, max_size=3), st.one_of(st.none(), st.integers(0, 30)))


def recorded(d):
    """The plans of all steps that compute something, in which the limit is held."""
    plans, submit = [], d.core._submit

    def submitting(plan, inputs):
        check_limit(plan, is_alone=len(d.core.table.running) + len(d.core.table.waiting) == 1)
        if not plan.is_empty:
            plans.append(plan)
        submit(plan, inputs)

    d.core._submit = submitting
    return plans


def check_limit(plan, *, is_alone):
    for chunk in plan.chunks:
        limit = chunk.sequence.chunk_tokens
        assert chunk.length > 0
        assert chunk.length <= limit or not limit or is_alone


def shapes(plans):
    """Return for each step the number of sequences that decode, and the lengths of its chunks."""
    return [(len(plan.decode_slots), [chunk.length for chunk in plan.chunks]) for plan in plans]


@pytest.fixture(params=[FcfsPolicy, lambda: None], ids=["fcfs", "fair"])
def policy(request):
    return request.param()


@settings(max_examples=150, deadline=None)
@given(sizes=sizes, schedule=st.lists(turns, max_size=12), is_fair=st.booleans())
def test_random_schedules(driver, request_of, alone, sizes, schedule, is_fair):
    d = driver(policy=None if is_fair else FcfsPolicy(), **sizes)
    recorded(d)
    sent, aborted = [], set()
    for batch, abort in schedule:
        new = [request_of(len(sent) + i, **fields) for i, fields in enumerate(batch)]
        sent += new
        d.submit(*new)
        if abort is not None:
            aborted.add(abort)
            d.abort(abort)
        d.step()
    d.run()
    longest = min(d.limits.max_model_len, d.limits.num_blocks * d.limits.block_size + 1)
    for request in sent:
        tokens, reason = alone(request, longest)
        got = d.tokens.get(request.id, [])
        if request.id in d.rejected:
            assert "the prompt has" in d.rejected[request.id]
        elif request.id in aborted and d.reasons[request.id] == "abort":
            assert got == tokens[: len(got)]
        else:
            assert (got, d.reasons[request.id]) == (tokens, reason)


def test_chunks_are_short_while_others_decode(driver, request_of, policy):
    """Until the other one's last step has been committed."""
    d = driver(policy=policy)
    plans = recorded(d)
    d.submit(request_of(1, range(4), max_tokens=5))
    d.step()
    d.submit(request_of(2, range(40), max_tokens=1, chunk_tokens=3))
    d.run()
    assert shapes(plans) == [(0, [4]), *[(1, [3])] * 4, (0, [3]), (0, [16]), (0, [9])]


def test_a_prompt_alone_takes_whole_steps(driver, request_of, policy):
    d = driver(policy=policy)
    plans = recorded(d)
    d.submit(request_of(1, range(40), max_tokens=1, chunk_tokens=3))
    d.run()
    assert shapes(plans) == [(0, [16]), (0, [16]), (0, [8])]


def test_several_prompts_fill_a_step_together(driver, request_of, policy):
    d = driver(policy=policy, max_num_seqs=6, max_output_rows=6)
    plans = recorded(d)
    d.submit(*(request_of(i, range(i, i + 10), max_tokens=1, chunk_tokens=6) for i in range(4)))
    d.run()
    assert shapes(plans) == [(0, [6, 6, 4]), (0, [4, 4, 6, 2]), (0, [6]), (0, [2])]


def test_who_comes_with_a_few_tokens_does_not_wait_for_a_long_prompt(driver, request_of, policy):
    """A sequence whose pages have come goes on with a few tokens in the same way."""
    d = driver(policy=policy)
    plans = recorded(d)
    d.submit(request_of(1, [5] * 60, max_tokens=1, chunk_tokens=8))
    d.step()
    d.submit(request_of(2, range(7, 10), max_tokens=3, chunk_tokens=8))
    d.run()
    assert shapes(plans)[:4] == [(0, [16]), (0, [8, 3]), (1, [8]), (1, [8])]


def test_a_prompt_without_a_limit_takes_what_is_left(driver, request_of, policy):
    d = driver(policy=policy)
    plans = recorded(d)
    d.submit(request_of(1, range(4), max_tokens=20))
    d.step()
    d.submit(request_of(2, range(20), max_tokens=1, chunk_tokens=4), request_of(3, range(30), max_tokens=1))
    d.run()
    assert shapes(plans)[1:4] == [(1, [4, 11]), (1, [4, 11]), (1, [4, 8])]


def test_prompts_hold_each_other_to_their_limits(driver, request_of, policy):
    d = driver(policy=policy)
    plans = recorded(d)
    d.submit(*(request_of(i, range(i, i + 20), max_tokens=4, chunk_tokens=5) for i in (1, 2)))
    d.run()
    assert shapes(plans)[:6] == [(0, [5, 5])] * 4 + [(2, [])] * 2


@pytest.mark.parametrize("chunk_tokens", [-1, -(2**63), 2**63, 16])
def test_a_limit_that_is_none(driver, request_of, alone, chunk_tokens):
    d = driver()
    plans = recorded(d)
    first, second = (
        request_of(1, range(4), max_tokens=20),
        request_of(2, range(40), max_tokens=1, chunk_tokens=chunk_tokens),
    )
    d.submit(first)
    d.step()
    d.submit(second)
    d.run()
    assert shapes(plans)[1:4] == [(1, [15]), (1, [15]), (1, [10])]
    assert d.tokens[2] == alone(second, 64)[0]
