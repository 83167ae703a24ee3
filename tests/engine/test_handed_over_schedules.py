"""Random schedules over a prefill and a decode engine: each request gets what it would get alone, whatever of
its pages came, whoever speculates, and with any spans and recurrent states."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import CAUSAL, Chunk, Window
from firelane.kv import SnapshotRule
from tests.engine.handed_over import handed_over
from tests.engine.oracle import Oracle

spans = st.lists(
    st.one_of(st.just(CAUSAL), st.builds(Window, st.integers(1, 12)), st.builds(Chunk, st.integers(1, 12))),
    min_size=1,
    max_size=3,
).map(tuple)
shared = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([2, 4]),
        "max_model_len": st.just(60),
        "spans": st.one_of(st.just((CAUSAL,)), spans),
        "state_bytes": st.sampled_from([0, 0, 8]),
        "snapshots": st.builds(SnapshotRule, interval=st.integers(1, 12), at_least=st.integers(1, 5)),
    }
)
own = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_output_rows": st.integers(5, 9),
        "max_num_batched_tokens": st.integers(5, 24),
        "num_blocks": st.integers(30, 90),
        "prefix_cache": st.sampled_from([True, True, True, False]),
        "num_snapshots": st.sampled_from([40, 8, 3, 1]),
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
        "seed": st.integers(0, 3),
        "chunk_tokens": st.sampled_from([0, 0, 1, 3]),
        "max_tokens": st.integers(1, 20),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=3, unique=True),
        "prompt_logprobs": st.sampled_from([-1, -1, -1, 1]),
        "pooling": st.sampled_from([None, None, None, "last"]),
    }
)
batches = st.lists(st.lists(requests, min_size=1, max_size=3), min_size=1, max_size=6)


def an_oracle(spans, counts):
    """A proposer whose drafts are right for sequences of one seed, but for some tokens."""
    return Oracle(counts[0] % 4, spans, (count == 4 for count in itertools.cycle(counts)))


@settings(max_examples=40, deadline=None)
@given(
    shared=shared,
    sizes=st.tuples(own, own),
    schedule=batches,
    counts=st.lists(st.integers(0, 4), max_size=60),
    ways=st.tuples(st.booleans(), st.booleans()),
)
def test_all_get_what_they_get_alone(
    driver, request_of, alone, embedding_of, tiles, shared, sizes, schedule, counts, ways
):
    """ways: whether each batch ends before the next one comes, and whether pages are copied, as no arrays."""
    run_first, copies = ways
    has_state = bool(shared["state_bytes"])
    with tiles(shared["block_size"]):
        drafting = {"proposer": an_oracle(shared["spans"], counts)} if counts and not has_state else {}
        engines = [driver(**shared, **own, **drafting) for own in sizes]
        sent = []
        with handed_over(*engines, copies=copies) as pair:
            for batch in schedule:
                new = [request_of(len(sent) + i, **fields) for i, fields in enumerate(batch)]
                sent += new
                pair.submit(*new)
                if run_first:
                    pair.run()
                else:
                    pair.step()
            pair.run()
        model = {"spans": pair.limits.spans, "has_state": has_state}
        longest = [min(60, d.core.kv.max_tokens + 1) for d in engines]
        for request in sent:
            # One token comes from the prefill engine alone; of more, the decode engine has room for the rest.
            fits = longest[request.sampling.max_tokens > 1]
            if request.id in pair.rejected:
                assert "the prompt has" in pair.rejected[request.id]
            elif request.pooling:
                assert pair.embeddings[request.id] == embedding_of(request, **model)
            else:
                got = pair.tokens.get(request.id, []), pair.reasons[request.id]
                assert got == alone(request, fits, **model)
