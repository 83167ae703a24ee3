"""Steps submitted before the ones in front of them have ended."""

from __future__ import annotations


def test_decodes_run_ahead(driver, request_of, alone):
    d = driver(max_in_flight=2)
    requests = [request_of(i, range(i, i + 5), max_tokens=20) for i in range(3)]
    d.submit(*requests)
    d.run()
    assert d.executor.most_in_flight == 2
    for request in requests:
        assert d.tokens[request.id] == alone(request, 64)[0]
    assert d.executor.computed_tokens == 3 * (5 + 19)


def test_an_executor_of_one_step_is_never_given_two(driver, request_of):
    d = driver()
    d.submit(request_of(1, range(5), max_tokens=20))
    d.run()
    assert d.executor.most_in_flight == 1


def test_a_stop_token_costs_one_row_at_most(driver, request_of, alone):
    """Its sequence has a row in the step that was submitted before the token was seen."""
    free, _ = alone(request_of(1, range(9), max_tokens=20), 64)
    d = driver(max_in_flight=2)
    d.submit(request_of(1, range(9), max_tokens=20, stop_token_ids=[free[9]]))
    d.run()
    drawn = free.index(free[9]) + 1
    assert (d.tokens[1], d.reasons[1]) == (free[:drawn], "stop")
    assert d.executor.computed_tokens <= 9 + drawn - 1 + 1


def test_a_slot_is_free_when_the_last_step_that_has_it_is_committed(driver, request_of, alone):
    free, _ = alone(request_of(1, range(9), max_tokens=20), 64)
    d = driver(max_in_flight=2)
    d.submit(request_of(1, range(9), max_tokens=20, stop_token_ids=[free[3]]), request_of(2, range(4)))
    while 1 not in d.reasons:
        d.step()
    slots = d.limits.max_num_seqs
    assert d.core.table.num_free_slots == slots - 2
    d.step()
    assert d.core.table.num_free_slots == slots - 1
    d.run()


def test_an_arriving_request_is_in_the_step_after_the_one_in_flight(driver, request_of):
    """It comes while nothing waits, so one step is in flight between two turns, and never two."""
    d = driver(max_in_flight=2)
    d.submit(request_of(1, range(4), max_tokens=40))
    for _ in range(6):
        d.step()
    d.submit(request_of(2, range(4), max_tokens=3))
    d.step()
    assert d.executor.pending.num_tokens == 5
    d.run()
