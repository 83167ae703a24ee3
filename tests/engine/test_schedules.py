"""Random schedules: whatever else happens, each request gets what it would get alone, and nothing leaks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.engine.policies.fcfs import FcfsPolicy
from firelane.wire.frames import Abort, Submit

sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_output_rows": st.integers(5, 9),
        "max_num_batched_tokens": st.integers(5, 24),
        "max_model_len": st.integers(12, 40),
        "block_size": st.sampled_from([1, 2, 3, 4, 8]),
        "num_blocks": st.integers(4, 24),
        "prefix_cache": st.booleans(),
    }
)
PREFIXES = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9], []]
requests = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda prefix, cut, tail: (prefix[:cut] + tail) or [0],
            st.sampled_from(PREFIXES),
            st.integers(0, 8),
            st.lists(st.integers(0, 49), max_size=9),
        ),
        "salt": st.sampled_from([b"", b"a"]),
        "seed": st.integers(0, 3),
        "chunk_tokens": st.sampled_from([0, 0, 1, 3]),
        "max_tokens": st.integers(0, 14),
        "min_tokens": st.integers(0, 3),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=6, unique=True),
        "logprobs": st.sampled_from([-1, -1, 2]),
        "prompt_logprobs": st.sampled_from([-1, -1, -1, 1]),
        "pooling": st.sampled_from([None, None, None, "last", "mean"]),
    }
)
# A turn: requests that come before it, requests that come while its step runs, and which request is
# aborted, when.
turns = st.tuples(
    st.lists(requests, max_size=3),
    st.lists(requests, max_size=1),
    st.one_of(st.none(), st.tuples(st.booleans(), st.integers(0, 30))),
)


class Arrivals:
    """Hands over what a turn brings before its plan, and what it brings while the step before runs."""

    def __init__(self, d):
        self.d = d
        wait = d.executor.wait
        self.during = []

        def waiting():
            d.channel.arrived += self.during
            self.during = []
            return wait()

        d.executor.wait = waiting


@settings(max_examples=150, deadline=None)
@given(
    sizes=sizes,
    schedule=st.lists(turns, max_size=12),
    is_fair=st.booleans(),
    flight=st.sampled_from([(1, False), (2, False), (3, False), (2, True), (3, True)]),
)
def test_random_schedules(driver, request_of, alone, embedding_of, sizes, schedule, is_fair, flight):
    depth, is_pipelined = flight
    policy = None if is_fair else FcfsPolicy()
    d = driver(policy=policy, max_in_flight=depth, is_pipelined=is_pipelined, **sizes)
    arrivals, sent, aborted = Arrivals(d), [], set()
    for before, during, abort in schedule:
        for fields in before:
            sent.append(request_of(len(sent), **fields))
            d.submit(sent[-1])
        for fields in during:
            sent.append(request_of(len(sent), **fields))
            arrivals.during.append(Submit([sent[-1]]))
        if abort is not None:
            in_flight, which = abort
            aborted.add(which)
            arrived = arrivals.during if in_flight else d.channel.arrived
            arrived.append(Abort([which]))
        d.step()
    d.channel.arrived += arrivals.during
    arrivals.during = []
    d.run()
    for request in sent:
        if request.pooling:
            check_embedding(d, request, embedding_of, may_be_aborted=request.id in aborted)
        else:
            check(d, request, alone, may_be_aborted=request.id in aborted)


def check_embedding(d, request, embedding_of, *, may_be_aborted):
    longest = min(d.limits.max_model_len, d.limits.num_blocks * d.limits.block_size)
    if len(request.prompt) // 4 > longest:
        assert "the prompt has" in d.rejected[request.id]
        return
    assert request.id not in d.tokens
    assert request.id not in d.logprobs
    if may_be_aborted and d.reasons[request.id] == "abort":
        assert request.id not in d.embeddings
        return
    assert d.embeddings[request.id] == embedding_of(request)
    assert d.reasons[request.id] == "stop"
    if request.pooling == "mean":
        assert d.cached[request.id] == 0


def check(d, request, alone, *, may_be_aborted):
    prompt_len = len(request.prompt) // 4
    capacity = d.limits.num_blocks * d.limits.block_size
    if prompt_len > capacity or prompt_len + min(1, request.sampling.max_tokens) > d.limits.max_model_len:
        assert "the prompt has" in d.rejected[request.id]
        return
    tokens, reason = alone(request, min(d.limits.max_model_len, capacity + 1))
    got = d.tokens.get(request.id, [])
    if may_be_aborted and d.reasons[request.id] == "abort":
        assert got == tokens[: len(got)]
        return
    assert got == tokens
    assert d.reasons[request.id] == reason
    positions = [e.position for e in d.logprobs.get(request.id, [])]
    first = 1 if request.sampling.prompt_logprobs >= 0 else prompt_len
    last = prompt_len + len(tokens) if request.sampling.logprobs >= 0 else prompt_len
    assert positions == list(range(first, last))
    if request.sampling.prompt_logprobs >= 0:
        assert d.cached.get(request.id, 0) == 0
