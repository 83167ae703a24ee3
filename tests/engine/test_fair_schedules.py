"""Tenants and background work under the whole scheduler: shares, arrivals, preemption, and their bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.engine.policies import accounts as tenant_accounts
from firelane.engine.policies import fair

sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 9),
        "max_output_rows": st.integers(9, 12),
        "max_num_batched_tokens": st.integers(9, 24),
        "max_model_len": st.integers(12, 40),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "num_blocks": st.integers(4, 24),
        "prefix_cache": st.booleans(),
    }
)
claims = {
    "tenant": st.sampled_from("abc"),
    "weight": st.sampled_from([0.5, 1.0, 4.0]),
}
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 5), min_size=1, max_size=20),
        **claims,
        "background": st.booleans(),
        "chunk_tokens": st.sampled_from([0, 0, 1, 3]),
        "max_tokens": st.integers(0, 14),
        "prompt_logprobs": st.sampled_from([-1, -1, -1, 1]),
        "pooling": st.sampled_from([None, None, None, "mean"]),
    }
)
turns = st.tuples(st.lists(requests, max_size=3), st.lists(requests, max_size=2), st.integers(-40, 20))


def hold_times(d, tokens):
    """Steps are as if a short step of low-priority work had so many tokens."""
    d.core.policy.times.note = lambda *_: None
    d.core.policy.times.knows = lambda _: True
    d.core.policy.times.tokens_within = lambda factor: factor / 1.5 * tokens
    return d


def submit_during_step(d, *new):
    """They arrive while the step in flight runs."""
    wait = d.executor.wait

    def waiting():
        d.submit(*new)
        d.executor.wait = wait
        return wait()

    d.executor.wait = waiting


def steps_to_first_token(d, request_id, limit=50):
    for count in range(1, limit):
        d.step()
        if d.tokens.get(request_id):
            return count
    raise AssertionError("no token")


@settings(max_examples=200, deadline=None)
@given(sizes=sizes, schedule=st.lists(turns, max_size=12), low_tokens=st.integers(1, 30))
def test_all_end_with_the_tokens_they_get_alone(driver, request_of, alone, sizes, schedule, low_tokens):
    d, sent, aborted = hold_times(driver(**sizes), low_tokens), [], set()
    for before, during, abort in schedule:
        new = [request_of(len(sent) + i, **fields) for i, fields in enumerate([*before, *during])]
        sent += new
        d.submit(*new[: len(before)])
        if abort >= 0:
            aborted.add(abort)
            d.abort(abort)
        if d.executor.pending is None:
            d.submit(*new[len(before) :])
        else:
            submit_during_step(d, *new[len(before) :])
        d.step()
    d.run(max_steps=5000)
    for request in sent:
        check(d, request, alone, request.id in aborted)


def check(d, request, alone, may_be_aborted):
    if request.id in d.rejected:
        assert "the prompt has" in d.rejected[request.id]
        return
    if request.pooling:
        assert d.reasons[request.id] in ("stop", "abort")
        return
    capacity = d.limits.num_blocks * d.limits.block_size
    tokens, reason = alone(request, min(d.limits.max_model_len, capacity + 1))
    got = d.tokens.get(request.id, [])
    if may_be_aborted and d.reasons[request.id] == "abort":
        assert got == tokens[: len(got)]
    else:
        assert (got, d.reasons[request.id]) == (tokens, reason)


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 9),
    schedule=st.lists(
        st.lists(st.tuples(st.fixed_dictionaries(claims), st.integers(1, 30), st.integers(1, 20)), max_size=3)
    ),
)
def test_work_done_twice_is_bounded(driver, request_of, slots, schedule):
    """With blocks for all, sequences yield slots alone: an interactive one computes at most twice its length
    again."""
    d = driver(
        max_num_seqs=slots, max_output_rows=9, num_blocks=2000, prefix_cache=False, max_num_batched_tokens=9
    )
    hold_times(d, 6)
    lengths = []
    for batch in schedule:
        for claim, prompt, output in batch:
            d.submit(request_of(len(lengths), range(prompt), max_tokens=output, **claim))
            lengths.append(prompt + output)
        d.step()
    d.run(max_steps=20000)
    assert d.executor.computed_tokens <= 3 * sum(lengths)
    assert d.frames[-1].stats.preemptions <= sum(2 + math.log2(n) for n in lengths) if lengths else True


@pytest.mark.parametrize(("weights", "slots"), [((1.0, 1.0), 4), ((1.0, 3.0), 8), ((5.0, 1.0), 2)])
def test_backlogged_tenants_are_served_by_weight(driver, request_of, monkeypatch, weights, slots):
    for module in (tenant_accounts, fair):
        monkeypatch.setattr(module, "BURST_TOKENS", 32)
    d = hold_times(driver(max_num_seqs=slots, max_output_rows=9), 8)
    shares = dict(zip("ab", weights, strict=True))
    count = 150
    for i in range(2 * count):
        tenant = "ab"[i % 2]
        lengths = (1 + i * 7 % 23, 1 + i * 5 % 17) if tenant == "a" else (1 + i * 3 % 11, 1 + i * 11 % 29)
        d.submit(
            request_of(
                i,
                [k % 50 for k in range(lengths[0])],
                tenant=tenant,
                weight=shares[tenant],
                max_tokens=lengths[1],
            )
        )
    bound = 32 + slots * 40  # the burst, and what the running ones had left to do
    accounts = d.core.policy.accounts
    while True:
        d.step()
        waiting = {s.tenant.name for s in d.core.table.waiting.values()}
        if waiting != {"a", "b"}:
            break
        a, b = accounts.counter[:2]
        assert abs(a - b) <= bound
    assert d.executor.computed_tokens > 1500, "too short to say anything"
    computed = accounts.counter[:2] * accounts.weight[:2]
    assert computed[0] / computed[1] == pytest.approx(weights[0] / weights[1], rel=0.15)


def flood(request_of, count, prompt=40, output=20, first=1000, **claim):
    return [
        request_of(first + i, [(i + k) % 50 for k in range(prompt)], max_tokens=output, **claim)
        for i in range(count)
    ]


@pytest.mark.parametrize(("slots", "background"), [(4, False), (9, False), (1, True), (4, True), (9, True)])
@pytest.mark.parametrize("after", [1, 2, 7, 30])
def test_a_new_request_gets_its_first_token_soon(driver, request_of, slots, after, background):
    """The step in flight, if need be one that frees a slot, its own, and the one whose turn reports it."""
    d = hold_times(driver(max_num_seqs=slots, max_output_rows=9, num_blocks=64), 8)
    d.submit(*flood(request_of, 60, tenant="flood", background=background))
    for _ in range(after):
        d.step()
    d.submit(request_of(1, range(16), tenant="new"))
    assert steps_to_first_token(d, 1) <= 4
    d.run()


def test_a_new_request_needs_no_more_steps_with_few_blocks(driver, request_of):
    d = hold_times(driver(num_blocks=24), 8)
    d.submit(*flood(request_of, 60))
    for _ in range(20):
        d.step()
    d.submit(request_of(1, range(16), tenant="new"))
    assert steps_to_first_token(d, 1) <= 4
    assert d.frames[-1].stats.preemptions > 0
    d.run()


def test_one_that_comes_during_a_step_replaces_low_priority_work_in_the_next(driver, request_of, alone):
    d = hold_times(driver(max_num_seqs=8, max_output_rows=8, prefix_cache=False), 8)
    requests = flood(request_of, 7, prompt=4, output=30)
    d.submit(*requests)
    for _ in range(8):
        d.step()
    before = d.executor.computed_tokens
    new_request = request_of(1, range(16), tenant="new")
    submit_during_step(d, new_request)
    d.step()  # the step in flight; the new_request is in the one submitted now
    in_flight = d.executor.pending
    assert in_flight.num_tokens == 16
    assert in_flight.num_chunks == 1
    d.step()
    assert d.tokens[1]
    assert d.executor.computed_tokens == before + 7 + 16
    d.run()
    for request in [new_request, *requests]:
        assert d.tokens[request.id] == alone(request, 64)[0]


def test_the_flood_goes_on_beside_a_new_request_that_decodes(driver, request_of):
    d = hold_times(driver(max_num_seqs=8, max_output_rows=8), 5)
    d.submit(*flood(request_of, 30, prompt=4, output=40), request_of(1, range(4), max_tokens=30))
    d.run(max_steps=1000)
    last = max(i for i, frame in enumerate(d.frames) if 1 in frame.ids)
    meanwhile = sum(len(set(frame.ids) - {1}) for frame in d.frames[:last])
    assert meanwhile > 4 * 30 - 16


def test_peers_do_not_take_the_only_slot_from_each_other(driver, request_of):
    d = hold_times(driver(max_num_seqs=1, max_output_rows=1), 8)
    d.submit(*flood(request_of, 9, prompt=6, output=9))
    d.step()
    d.submit(request_of(1, range(16), tenant="new"))
    d.run()
    assert d.frames[-1].stats.preemptions == 0
    assert [f.id for frame in d.frames for f in frame.finished][1] == 1


def test_low_priority_work_takes_turns(driver, request_of):
    d = hold_times(driver(max_num_seqs=8, max_output_rows=8), 2)
    d.submit(*flood(request_of, 6, prompt=1, output=30), request_of(1, [3], max_tokens=40, tenant="new"))
    for _ in range(40):
        d.step()
    counts = [len(d.tokens[1000 + i]) for i in range(6)]
    assert max(counts) - min(counts) <= 2
    assert sum(counts) > 40


def test_background_starts_only_where_nothing_else_waits(driver, request_of):
    d = hold_times(driver(max_num_seqs=3, max_output_rows=3), 8)
    d.submit(*flood(request_of, 12, prompt=6, output=9, first=0, tenant="a", background=True))
    for _ in range(4):
        d.step()
    d.submit(*flood(request_of, 12, prompt=6, output=9, first=100, tenant="a"))
    d.run()
    ends = [f.id for frame in d.frames for f in frame.finished]
    interactive = [i for i in ends if i >= 100]
    assert ends.index(interactive[-1]) - len(interactive) < 3, "background work finished before others"


def test_background_alone_ends(driver, request_of):
    d = hold_times(driver(num_blocks=12), 3)
    d.submit(*flood(request_of, 9, prompt=30, output=9, tenant="a", background=True))
    d.run()
    assert len(d.reasons) == 9


def test_a_bad_weight_is_refused(driver, request_of):
    d = driver()
    d.submit(*(request_of(i, [1], weight=w) for i, w in enumerate([0.0, -1.0, math.nan, 1e9])))
    d.run()
    assert len(d.rejected) == 4
    assert all("weight is" in message for message in d.rejected.values())


def test_background_is_counted(driver, request_of):
    d = hold_times(driver(max_num_seqs=2, max_output_rows=2), 8)
    d.submit(*flood(request_of, 4, prompt=2, tenant="a", background=True))
    d.step()
    d.step()
    stats = d.frames[-1].stats
    assert (stats.running_background, stats.waiting_background) == (2, 2)
    d.run()
    stats = d.frames[-1].stats
    assert (stats.running_background, stats.waiting_background) == (0, 0)
