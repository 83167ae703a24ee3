from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import QueueFullError, RequestError
from firelane.gateway.admission import Admission

SEATS, QUEUE = 8, 40


def make() -> Admission:
    return Admission(("m",), QUEUE, 60.0)


def fill(admission: Admission, tenant: str) -> int:
    """How many single sequences of a tenant get in."""
    count = 0
    while True:
        try:
            admission.admit(1, SEATS, tenant)
        except QueueFullError:
            return count
        count += 1


def test_a_flood_leaves_places_to_others():
    admission = make()
    first = fill(admission, "flood")
    assert SEATS + QUEUE // 2 < first < SEATS + QUEUE
    assert fill(admission, "other") >= 2
    assert fill(admission, "third") >= 1


def test_an_open_server_uses_all_of_it():
    assert fill(make(), "") == SEATS + QUEUE


def test_idle_seats_are_for_anyone():
    admission = Admission(("m",), 0, 60.0)
    assert fill(admission, "flood") == SEATS


def test_one_large_request_gets_in_where_there_is_room():
    admission = make()
    admission.admit(SEATS + QUEUE, SEATS, "acme").release()
    with pytest.raises(RequestError, match="at most 48"):
        admission.admit(SEATS + QUEUE + 1, SEATS, "acme")


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(1, 30), st.booleans()), max_size=60))
def test_what_is_released_is_free(acts):
    admission, held = make(), []
    for tenant, sequences, release in acts:
        if release and held:
            held.pop(0).release()
            continue
        try:
            held.append(admission.admit(sequences, SEATS, tenant))
        except QueueFullError:
            continue
        assert admission.held == sum(admitted.sequences for admitted in held) <= SEATS + QUEUE
    for admitted in held:
        expected = admission.held - admitted.sequences
        admitted.release()
        admitted.release()
        assert admission.held == expected
    assert admission.held == 0
    assert fill(admission, "a") > SEATS
