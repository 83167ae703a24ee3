from __future__ import annotations

import pytest
from admission_support import QUEUE, SEATS, Exchange
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import EngineDeadError, QueueFullError, RequestError
from firelane.gateway.requests.admission import AdmissionController, Reservation
from firelane.gateway.requests.usage_log import Prices, UsageLog
from firelane.gateway.tenants.counts import LocalCounts
from firelane.gateway.tenants.registry import NoAuth
from firelane.telemetry.metrics import Registry


def make(queue: int = QUEUE) -> AdmissionController:
    usage = UsageLog(Registry(), Prices(None), lambda: 0.0)
    return AdmissionController(NoAuth(), usage, queue, 60.0)


def admit(admission: AdmissionController, sequences: int, tenant: str, background=False) -> Reservation:
    return admission.reserve(Exchange(tenant, background), sequences, SEATS)


def fill(admission: AdmissionController, tenant: str) -> int:
    """Admit single sequences of a tenant until the queue is full; return how many got in."""
    count = 0
    while True:
        try:
            admit(admission, 1, tenant)
        except QueueFullError:
            return count
        count += 1


def test_a_flood_leaves_places_to_others():
    """The flood ends where 8 times what is free is less than it has: 8 * 5 < 43. So does the second tenant,
    with 5; one that has nothing yet is admitted while there is room at all."""
    admission = make()
    assert fill(admission, "flood") == 42
    with pytest.raises(QueueFullError, match="tenant flood has 42 sequences here"):
        admit(admission, 1, "flood")
    assert fill(admission, "other") == 5
    assert fill(admission, "third") == 1
    with pytest.raises(QueueFullError, match=r"the queue is full \(40 waiting requests\)"):
        admit(admission, 1, "fourth")


def test_what_a_flood_may_have_is_counted_in_sequences():
    admission = make()
    admit(admission, 30, "flood")
    with pytest.raises(QueueFullError, match="tenant flood has 30 sequences here"):
        admit(admission, 13, "flood")
    admit(admission, 12, "flood")
    assert (admission.held, fill(admission, "flood")) == (42, 0)


def test_a_flood_may_have_exactly_its_share_of_what_is_free():
    """The 40th leaves 5 free, and 8 * 5 is 40."""
    admission = make()
    admit(admission, 3, "other")
    assert fill(admission, "flood") == 40


def test_an_open_server_uses_all_of_it():
    assert fill(make(), "") == SEATS + QUEUE


def test_tenants_of_another_model_are_others():
    """Models share the counts; what a tenant has of one is not held against it at another."""
    counts, models = LocalCounts(), []
    for model in ("a", "b"):
        usage = UsageLog(Registry(), Prices(None), lambda: 0.0)
        models.append(AdmissionController(NoAuth(), usage, QUEUE, 60.0, model=model, counts=counts))
    assert [fill(admission, "flood") for admission in models] == [42, 42]


def test_idle_seats_are_for_anyone():
    admission = make(queue=0)
    assert fill(admission, "flood") == SEATS


def test_many_idle_seats_are_for_anyone_however_short_the_queue_is():
    admission, seats = make(queue=2), 100
    for _ in range(seats):
        admission.reserve(Exchange("flood"), 1, seats)
    with pytest.raises(QueueFullError, match="tenant flood has 100 sequences here"):
        admission.reserve(Exchange("flood"), 1, seats)
    admission.reserve(Exchange("other"), 1, seats)


def test_one_large_request_gets_in_where_there_is_room():
    admission = make()
    admit(admission, SEATS + QUEUE, "acme").release()
    with pytest.raises(RequestError, match="at most 48"):
        admit(admission, SEATS + QUEUE + 1, "acme")


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(1, 30), st.booleans()), max_size=60))
def test_what_is_released_is_free(acts):
    admission, held = make(), []
    for tenant, sequences, release in acts:
        if release and held:
            held.pop(0).release()
            continue
        try:
            held.append(admit(admission, sequences, tenant))
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


def test_a_reservation_is_released_unless_another_owner_has_it():
    admission = make()

    def fail() -> None:
        with admit(admission, 3, "a"):
            assert admission.held == 3
            raise ValueError("template")

    with pytest.raises(ValueError, match="template"):
        fail()
    assert admission.held == 0
    with admit(admission, 2, "a") as reservation:
        passed_on = reservation.pop()
    assert admission.held == 2
    reservation.release()
    assert admission.held == 2
    passed_on.release()
    assert admission.held == 0


def test_background_work_takes_idle_seats_and_no_room_from_clients():
    admission = make()
    held = [admit(admission, 1, "b", background=True) for _ in range(SEATS)]
    assert (admission.held, admission.background) == (0, SEATS)
    with pytest.raises(QueueFullError, match="no seat is idle"):
        admit(admission, 1, "b", background=True)
    assert fill(admission, "") == SEATS + QUEUE
    for reservation in held:
        reservation.release()
    assert admission.background == 0


def test_background_work_leaves_the_seats_that_clients_have():
    admission = make()
    admit(admission, 3, "a")
    held = [admit(admission, 1, "b", background=True) for _ in range(5)]
    with pytest.raises(QueueFullError, match="no seat is idle"):
        admit(admission, 1, "b", background=True)
    held.pop().release()
    assert (admission.held, admission.background) == (3, 4)
    admit(admission, 2, "b", background=True)
    assert (admission.held, admission.background) == (3, 6)


def test_background_work_that_has_never_room_is_refused_as_such():
    admit(make(), SEATS + QUEUE, "b", background=True)
    with pytest.raises(RequestError, match="at most 48"):
        admit(make(), SEATS + QUEUE + 1, "b", background=True)


def test_nothing_is_admitted_while_draining():
    admission = make()
    admission.draining = True
    with pytest.raises(EngineDeadError, match="shutting down"):
        admit(admission, 1, "")


def test_what_a_tenant_gave_back_does_not_count_against_it():
    fresh, used = make(), make()
    for number in range(3 * (SEATS + QUEUE)):
        admit(used, 1 + number % 2, "acme").release()
    assert fill(used, "acme") == fill(fresh, "acme")
    assert fill(used, "other") == fill(fresh, "other")


def test_a_request_is_told_when_it_has_waited_for_longer_than_the_limit():
    admission, told = make(), []
    young, old = admit(admission, 1, "a"), admit(admission, 1, "a")
    admission.line[old] = (0.0, told.append)
    admission.line[young] = (10.0, told.append)
    admission.sweep(60.0)
    assert told == []
    admission.sweep(60.5)
    assert [str(error) for error in told] == ["the request waited 60 s in the queue: try again later"]
    assert list(admission.line) == [young]
