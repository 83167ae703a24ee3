from __future__ import annotations

import itertools
import time

import numpy as np
import pytest


def check(driver, requests, alone):
    for request in requests:
        tokens, reason = alone(request, driver.limits.max_model_len)
        assert driver.tokens.get(request.id, []) == tokens, f"request {request.id}"
        assert driver.reasons[request.id] == reason


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 17, 40])
def test_one_request(driver, request_of, alone, length):
    d = driver()
    request = request_of(1, range(length))
    d.submit(request)
    d.run()
    check(d, [request], alone)


def test_a_single_sequence_takes_one_step_a_token(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(5), max_tokens=6))
    d.run()
    assert d.executor.steps == 6
    assert d.executor.computed_tokens == 5 + 5


def test_more_requests_than_slots(driver, request_of, alone):
    d = driver()
    requests = [request_of(i, range(i, i + 3 + i % 5), max_tokens=1 + i % 9) for i in range(20)]
    d.submit(*requests)
    d.run()
    check(d, requests, alone)


def test_stop_token_ends_with_the_token_reported(driver, request_of, alone):
    free, _ = alone(request_of(1, range(9), max_tokens=20), 64)
    request = request_of(1, range(9), max_tokens=20, stop_token_ids=[free[4]])
    d = driver()
    d.submit(request)
    d.run()
    check(d, [request], alone)
    assert d.tokens[1][-1] == free[4]
    assert d.reasons[1] == "stop"


def test_min_tokens_holds_back_stop_tokens(driver, request_of, alone):
    request = request_of(1, range(9), max_tokens=12, min_tokens=6, stop_token_ids=list(range(10)))
    d = driver()
    d.submit(request)
    d.run()
    check(d, [request], alone)
    assert len(d.tokens[1]) > 6 or d.reasons[1] == "length"


def test_max_tokens_is_clipped_to_the_context(driver, request_of, alone):
    request = request_of(1, [i % 50 for i in range(60)], max_tokens=1000)
    d = driver(max_num_batched_tokens=64)
    d.submit(request)
    d.run()
    check(d, [request], alone)
    assert len(d.tokens[1]) == 4


def test_max_tokens_is_clipped_to_the_pool(driver, request_of):
    d = driver(num_blocks=3)
    d.submit(request_of(1, range(10), max_tokens=1000))
    d.run()
    assert len(d.tokens[1]) == 3
    assert d.reasons[1] == "length"


def test_no_tokens_asked_for(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(10), max_tokens=0))
    d.run()
    assert d.reasons == {1: "length"}
    assert d.executor.steps == 0


def test_whole_prompt_cached_still_computes_the_last_token(driver, request_of, alone):
    requests = [request_of(i, range(12)) for i in (1, 2)]
    d = driver()
    d.submit(requests[0])
    d.run()
    d.submit(requests[1])
    d.run()
    assert d.cached == {1: 0, 2: 8}
    check(d, requests, alone)


def test_generated_blocks_are_found_by_the_next_turn(driver, request_of, alone):
    d = driver()
    d.submit(request_of(1, range(6), max_tokens=10))
    d.run()
    follow_up = request_of(2, [*range(6), *d.tokens[1], 7])
    d.submit(follow_up)
    d.run()
    assert d.cached[2] == 12  # 15 tokens have K/V, the last generated one was never computed
    check(d, [follow_up], alone)


def test_salts_do_not_share(driver, request_of):
    d = driver()
    for request_id, salt in ((1, b"a"), (2, b"b"), (3, b"a")):
        d.submit(request_of(request_id, range(12), salt=salt))
        d.run()
    assert d.cached == {1: 0, 2: 0, 3: 8}


def test_prefix_cache_off(driver, request_of):
    d = driver(prefix_cache=False)
    for request_id in (1, 2):
        d.submit(request_of(request_id, range(12)))
        d.run()
    assert d.cached == {1: 0, 2: 0}


def test_preemption_oldest_finishes_first_and_tokens_stay(driver, request_of, alone):
    d = driver(num_blocks=8, max_num_seqs=3, max_output_rows=3)
    requests = [request_of(i, range(i, i + 4), max_tokens=20) for i in range(3)]
    d.submit(*requests)
    d.run()
    check(d, requests, alone)
    assert d.frames[-1].stats.preemptions > 0
    assert [f.id for frame in d.frames for f in frame.finished] == [0, 1, 2]


def test_abort_while_waiting_prefilling_and_decoding(driver, request_of, alone):
    d = driver(max_num_seqs=2, max_output_rows=2)
    long, other, waits = (
        request_of(1, range(50)),
        request_of(2, range(4), max_tokens=30),
        request_of(3, range(4)),
    )
    d.submit(long, other, waits)
    d.step()
    d.step()
    for request_id in (1, 3, 2, 2, 99):
        d.abort(request_id)
    d.run()
    assert d.reasons == {1: "abort", 2: "abort", 3: "abort"}
    assert d.tokens.get(2, []) == alone(other, 64)[0][: len(d.tokens.get(2, []))]


def test_abort_frees_the_slot_for_the_next(driver, request_of, alone):
    d = driver(max_num_seqs=1, max_output_rows=1)
    first, second = request_of(1, range(4), max_tokens=50), request_of(2, range(4))
    d.submit(first, second)
    d.step()
    d.step()
    d.abort(1)
    d.run()
    check(d, [second], alone)


def test_a_request_that_comes_during_a_step_joins_the_next(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(4), max_tokens=30))
    d.step()
    wait = d.executor.wait

    def arrive():
        d.submit(request_of(2, range(4), max_tokens=3))
        d.executor.wait = wait
        return wait()

    d.executor.wait = arrive
    d.step()  # commits step 1, submits step 2 with the prefill of the new request
    d.step()
    assert [f.step for f in d.frames if 2 in f.ids] == [2]
    d.run()


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        (range(0), {}, "0 bytes"),
        ([50], {}, "not in the vocabulary"),
        ([-1], {}, "not in the vocabulary"),
        (list(range(50)) + [0] * 14, {}, "exceeds the model's context of 64"),
        ([1], {"stop_token_ids": list(range(17))}, "stop token ids"),
        ([1], {"stop_token_ids": [99]}, "not in the vocabulary"),
        ([1], {"logit_bias": [(-1, 0.0)]}, "not in the vocabulary"),
        ([1], {"logit_bias": [(1, 0.0)] * 301}, "at most 300"),
        ([1], {"temperature": float("nan")}, "finite"),
        ([1], {"temperature": -1.0}, "temperature is -1.0: it must be a finite number from 0"),
        ([1], {"top_p": 7.0}, "top_p is 7.0: it must be a finite number from 0 to 1"),
        ([1], {"min_p": -0.1}, "min_p"),
        ([1], {"repetition_penalty": 0.0}, "repetition_penalty"),
        ([1], {"logprobs": 21}, "logprobs"),
        ([1], {"logprobs": 0, "logprob_token_ids": list(range(21))}, "at most 20"),
        ([1], {"logprobs": 0, "logprob_token_ids": [10**6]}, "vocabulary"),
        ([1], {"logprob_token_ids": [1]}, "logprobs must be 0"),
        ([1], {"logprobs": 0, "prompt_logprobs": 1, "logprob_token_ids": [1]}, "logprobs must be 0"),
        ([1], {"max_tokens": -1}, "max_tokens"),
    ],
)
def test_rejected(driver, request_of, prompt, sampling, message):
    d = driver()
    d.submit(request_of(1, prompt, **sampling))
    d.step()
    assert message in d.rejected[1]
    assert d.core.is_idle


def test_rejected_by_a_small_pool(driver, request_of):
    d = driver(num_blocks=2)
    d.submit(request_of(1, range(9)), request_of(2, range(8), max_tokens=9))
    d.run()
    assert "room for 8" in d.rejected[1]
    assert len(d.tokens[2]) == 1


def test_id_in_use(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(4)), request_of(1, range(4)))
    d.run()
    assert "in use" in d.rejected[1]


def test_named_tokens_are_told_to_the_executor_before_the_biases_of_a_request(driver, request_of):
    d = driver()
    named = {"logprobs": 0, "logprob_token_ids": [7, 2, 9]}
    d.submit(request_of(1, range(9), max_tokens=2, logit_bias=[(3, -1.0)], **named), request_of(2, range(3)))
    d.step()
    state = d.executor.state
    slot, other = state.sampling["num_reported"].argmax(), state.sampling["num_reported"].argmin()
    assert (state.sampling["num_reported"][slot], state.sampling["num_bias"][slot]) == (3, 4)
    assert state.bias_ids[slot, :4].tolist() == [7, 2, 9, 3]
    assert state.bias_values[slot, :4].tolist() == [0.0, 0.0, 0.0, -1.0]
    assert state.sampling["num_bias"][other] == 0
    d.run()
    assert [len(entry.top_ids) for entry in d.logprobs[1]] == [3, 3]


def test_prompt_logprobs_for_every_position_once(driver, request_of, alone):
    for rows in (4, 9):
        d = driver(max_output_rows=rows)
        d.submit(request_of(9, range(20), max_tokens=2))
        d.run()
        scored = request_of(1, range(20), max_tokens=3, prompt_logprobs=2, logprobs=1)
        other = request_of(2, range(3, 9), max_tokens=12)
        d.submit(scored, other)
        d.run()
        check(d, [scored, other], alone)
        assert d.cached[1] == 0  # scores need every position computed
        assert [e.position for e in d.logprobs[1]] == list(range(1, 23))
        assert [e.token for e in d.logprobs[1]] == [*range(1, 20), *d.tokens[1]]
        assert {len(e.top_ids) for e in d.logprobs[1][:19]} == {2}
        assert {len(e.top_ids) for e in d.logprobs[1][19:]} == {1}
        assert 2 not in d.logprobs


def test_scores_alone(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(11), max_tokens=0, prompt_logprobs=0))
    d.run()
    assert [e.position for e in d.logprobs[1]] == list(range(1, 11))
    assert 1 not in d.tokens
    assert d.reasons[1] == "length"


def test_the_first_frame_of_a_request_says_how_long_ago_it_was_planned(driver, request_of, monkeypatch):
    clock = itertools.count(100, 10)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    d = driver()
    d.submit(request_of(1, range(40), max_tokens=2))
    d.run()
    assert [s.age_s for frame in d.frames for s in frame.started] == [10.0]


def test_alternatives_that_do_not_exist_are_not_reported(driver, request_of):
    """A vocabulary of three: the executor leaves -1 behind the third alternative."""
    d = driver()
    row = d.executor._draw

    def short(inputs, outputs, r, token_rows):
        row(inputs, outputs, r, token_rows)
        outputs.top_ids[r, 3:], outputs.top_logprobs[r, 3:] = -1, -np.inf

    d.executor._draw = short
    d.submit(request_of(1, range(5), max_tokens=2, logprobs=5, prompt_logprobs=4))
    d.run()
    assert [(len(e.top_ids), e.top_logprobs) for e in d.logprobs[1]] == [(3, [0.0, -1.0, -2.0])] * 6


def test_logprobs_do_not_depend_on_company(driver, request_of):
    entries = []
    for company in (0, 6):
        d = driver(max_num_batched_tokens=7 + company, num_blocks=12)
        d.submit(*(request_of(10 + i, range(i, i + 9), max_tokens=9) for i in range(company)))
        d.submit(request_of(1, range(11), prompt_logprobs=1, logprobs=1))
        d.run()
        entries.append(d.logprobs[1])
    assert entries[0] == entries[1]


def test_stats(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(10), max_tokens=3), request_of(2, range(10), max_tokens=3))
    d.run()
    stats = d.frames[-1].stats
    assert (stats.prompt_tokens, stats.generated_tokens) == (20, 6)
    assert (stats.running, stats.waiting, stats.kv_used_blocks, stats.kv_total_blocks) == (0, 0, 0, 32)
