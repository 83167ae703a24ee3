"""The estimate of what is left of an engine's prompts, beside its plain twin."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.routed_engine import LEAST_LEFT, Load
from firelane.wire.frames import NewRequest, Sampling

TOKEN_MS = 0.5
"""2,000 tokens a second."""


def flight_of(number, tokens):
    return InFlight(NewRequest(id=number, prompt=b"\1\0\0\0" * tokens, sampling=Sampling()), None)


@pytest.fixture
def load():
    return Load()


def test_what_is_computed_in_the_meantime_is_not_ahead_any_more(load):
    load.add(flight_of(1, 1000))
    assert load.left(10.0, TOKEN_MS) == 1000
    assert load.left(10.1, TOKEN_MS) == 800
    assert load.left(10.3, TOKEN_MS) == 400
    assert load.tokens == 1000


def test_an_idle_engine_computes_nothing_in_advance(load):
    assert load.left(0.0, TOKEN_MS) == 0
    load.add(flight_of(1, 1000))
    assert load.left(100.0, TOKEN_MS) == 1000


def test_a_new_prompt_counts_as_a_whole(load):
    load.add(flight_of(1, 1000))
    load.left(0.0, TOKEN_MS)
    load.add(flight_of(2, 300))
    assert load.left(0.25, TOKEN_MS) == 500 + 300


def test_a_first_token_says_that_no_more_is_left_than_the_others_have(load):
    """The engine was faster than it had told."""
    flights = {i: flight_of(i, 1000) for i in (1, 2)}
    for flight in flights.values():
        load.add(flight)
    load.left(0.0, TOKEN_MS)
    flights[1].tokens.append(7)
    load.settle(flights)
    assert load.left(0.1, TOKEN_MS) == 1000
    del flights[2]
    load.settle(flights)
    assert load.left(0.1, TOKEN_MS) == load.tokens == 0


def test_a_prompt_that_does_not_draw_stays_in_the_way(load):
    """The engine is slower than it has told, or stands still."""
    load.add(flight_of(1, 1000))
    load.left(0.0, TOKEN_MS)
    assert load.left(60.0, TOKEN_MS) == LEAST_LEFT * 1000


def test_prompts_count_as_wholes_where_no_times_are_told(load):
    load.add(flight_of(1, 1000))
    load.left(0.0, 0.0)
    assert load.left(0.4, 0.0) == 1000


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "draw", "wait"]), st.integers(1, 5000), st.floats(0.0, 2.0)),
        max_size=40,
    ),
    token_ms=st.sampled_from([0.0, 1e-9, 0.01, 0.5, 1e9]),
)
def test_the_estimate_stays_between_a_part_and_all_of_what_has_not_drawn(steps, token_ms):
    load, flights, now_s = Load(), {}, 0.0
    for number, (step, tokens, seconds) in enumerate(steps):
        if step == "add":
            flights[number] = flight_of(number, tokens)
            load.add(flights[number])
        elif step == "draw" and flights:
            flights.pop(next(iter(flights)))
            load.settle(flights)
        now_s += seconds
        waiting = sum(flight.prompt_tokens for flight in flights.values())
        assert load.tokens == waiting
        assert LEAST_LEFT * waiting - 1 <= load.left(now_s, token_ms) <= waiting
