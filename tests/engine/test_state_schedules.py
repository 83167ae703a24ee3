"""Recurrent state under random schedules: snapshots come and go, and each request still gets what it would
get alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, Chunk, Window
from firelane.engine.policies.fcfs import FcfsPolicy
from firelane.kv import SnapshotRule

spans = st.lists(
    st.one_of(st.just(CAUSAL), st.builds(Window, st.integers(1, 12)), st.builds(Chunk, st.integers(1, 12))),
    min_size=1,
    max_size=3,
).map(tuple)
sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_output_rows": st.integers(5, 9),
        "max_num_batched_tokens": st.integers(5, 24),
        "max_model_len": st.integers(30, 60),
        "block_size": st.sampled_from([1, 2, 4]),
        "num_blocks": st.integers(30, 70),
        "prefix_cache": st.sampled_from([True, True, True, False]),
        "spans": st.one_of(st.just((CAUSAL,)), spans),
        "max_in_flight": st.sampled_from([1, 2, 3]),
        "is_pipelined": st.booleans(),
        "num_snapshots": st.sampled_from([40, 8, 3, 2, 1, 0]),
        "state_bytes": st.just(64),
        "snapshots": st.builds(SnapshotRule, interval=st.integers(1, 12), at_least=st.integers(1, 5)),
    }
)
PREFIXES = [[1, 2, 3, 4, 5, 6, 7, 8] * 3, [1, 2, 3, 4, 9, 9, 9, 9] * 2, []]
requests = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda prefix, cut, tail: (prefix[:cut] + tail) or [0],
            st.sampled_from(PREFIXES),
            st.sampled_from([24, 16, 9, 5, 0]),
            st.lists(st.integers(0, 49), max_size=6),
        ),
        "salt": st.sampled_from([b"", b"", b"a"]),
        "tenant": st.sampled_from(["a", "a", "b"]),
        "background": st.sampled_from([False, False, True]),
        "seed": st.integers(0, 3),
        "chunk_tokens": st.sampled_from([0, 0, 1, 3]),
        "max_tokens": st.integers(0, 20),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=3, unique=True),
        "prompt_logprobs": st.sampled_from([-1, -1, -1, 1]),
        "pooling": st.sampled_from([None, None, None, "last", "mean"]),
    }
)
# A turn: new requests, requests that go on with what an earlier one has said, and which one is aborted.
turns = st.tuples(
    st.lists(requests, min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 49), max_size=4)), max_size=2),
    st.one_of(st.none(), st.integers(0, 30)),
)


def follow_up(d, sent, which, new_tokens, request_of, **fields):
    """A prompt that begins with all that an earlier request has been given."""
    before = sent[which % len(sent)]
    prompt = np.frombuffer(before.prompt, np.int32).tolist()
    return request_of(
        len(sent),
        [*prompt, *d.tokens.get(before.id, []), *new_tokens],
        salt=before.salt,
        max_tokens=6,
        **fields,
    )


@settings(max_examples=120, deadline=None)
@given(
    sizes=sizes,
    tile=st.sampled_from([1, 2, 4]),
    schedule=st.lists(turns, min_size=2, max_size=14),
    is_fair=st.booleans(),
)
def test_random_schedules(driver, request_of, alone, embedding_of, tiles, sizes, tile, schedule, is_fair):
    with tiles(tile):
        d, sent, aborted = driver(policy=None if is_fair else FcfsPolicy(), **sizes), [], set()
        if is_fair:
            d.core.policy.times.tokens_within = lambda _: 6.0
        for batch, later, abort in schedule:
            first = len(sent)
            sent += [request_of(first + i, **fields) for i, fields in enumerate(batch)]
            for which, new_tokens in later if sent else []:
                sent.append(follow_up(d, sent, which, new_tokens, request_of))
            d.submit(*sent[first:])
            if abort is not None:
                aborted.add(abort)
                d.abort(abort)
            d.step()
        d.run(max_steps=5000)
        for request in sent:
            if request.id in d.rejected:
                assert "the prompt has" in d.rejected[request.id]
            elif d.reasons[request.id] == "abort":
                assert request.id in aborted
                check_begun(d, request, alone)
            elif request.pooling:
                assert d.embeddings[request.id] == embedding_of(request, **model_of(d))
            else:
                longest = min(d.limits.max_model_len, d.core.kv.max_tokens + 1)
                assert outcome(d, request) == alone(request, longest, **model_of(d))


def model_of(d):
    return {"spans": d.limits.spans, "has_state": True}


def outcome(d, request):
    return d.tokens.get(request.id, []), d.reasons[request.id]


def check_begun(d, request, alone):
    got, _ = outcome(d, request)
    assert got == alone(request, d.limits.max_model_len, **model_of(d))[0][: len(got)]
