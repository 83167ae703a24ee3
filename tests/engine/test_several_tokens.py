"""An executor that accepts several tokens in a step, or none: lengths are what was committed, and each
request gets the tokens that it gets one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.contract import SAMPLE


def speculating(executor, counts):
    """Rows that sample run on for `counts` tokens in turn, within a block; 0 within a block that is not full:
    the row is computed again."""
    draw, turns = executor._draw, iter(counts)

    def run_on(inputs, outputs, r, token_rows):
        draw(inputs, outputs, r, token_rows)
        if inputs.row_kind[r] != SAMPLE:
            return
        slot, position = int(inputs.row_slot[r]), int(inputs.row_position[r])
        count = next(turns, 1)
        block_end = (position // executor.limits.block_size + 1) * executor.limits.block_size
        if not count and position + 1 == block_end:
            count = 1
        last = min(position + max(count, 1), block_end, executor.limits.max_model_len - 1)
        outputs.accepted[r] = max(1, last - position) if count else 0
        for p in range(position + 1, last):
            (row,) = executor._chunk(slot, p, 1)
            step = inputs.row_token[r], inputs.row_position[r]
            inputs.row_token[r], inputs.row_position[r] = 0, p
            draw(inputs, outputs, r, [row])
            inputs.row_token[r], inputs.row_position[r] = step

    executor._draw = run_on


sizes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "max_output_rows": st.integers(4, 6),
        "max_num_batched_tokens": st.integers(4, 24),
        "max_model_len": st.just(60),
        "block_size": st.sampled_from([4, 8]),
        "num_blocks": st.integers(18, 40),
    }
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 9), min_size=1, max_size=20),
        "max_tokens": st.integers(1, 20),
        "stop_token_ids": st.lists(st.integers(0, 49), max_size=4, unique=True),
    }
)


@settings(max_examples=80, deadline=None)
@given(sizes=sizes, sent=st.lists(requests, max_size=8), counts=st.lists(st.integers(0, 4), max_size=60))
def test_all_get_the_tokens_that_they_get_one_by_one(driver, request_of, alone, sizes, sent, counts):
    d = driver(speculates=True, **sizes)
    speculating(d.executor, counts)
    sent = [request_of(i, **fields) for i, fields in enumerate(sent)]
    d.submit(*sent)
    d.run()
    for request in sent:
        assert (d.tokens[request.id], d.reasons[request.id]) == alone(request, 60)


def test_several_tokens_take_fewer_steps(driver, request_of, alone):
    d = driver(speculates=True)
    speculating(d.executor, [4] * 100)
    request = request_of(1, range(5), max_tokens=40)
    d.submit(request)
    d.run()
    assert d.tokens[1] == alone(request, 64)[0]
    assert d.executor.steps <= 12
    assert [4] in [f.counts for f in d.frames]
