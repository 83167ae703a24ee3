"""Reservations give back what they hold, in the same parts: places in the queue, requests and tokens."""

from __future__ import annotations

import os

import pytest
from admission_support import QUEUE, SEATS, Exchange

from firelane.errors import EngineDeadError, QueueFullError, RateLimitError, RequestError
from firelane.gateway.requests.admission import HELD, AdmissionController, cache_salt
from firelane.gateway.requests.usage_log import Prices, RequestOutcome, UsageLog
from firelane.gateway.tenants.counts import Counts, LocalCounts, LocalRecord, SharedCounts
from firelane.gateway.tenants.tenant import HELD_TOKENS, RUNNING, Quota, Tenant
from firelane.telemetry.metrics import Registry
from firelane.telemetry.traces import RequestTimes

NOW_S, TOKENS = 7.0, 100
LIMITS = Tenant(name="acme", requests_per_minute=10, tokens_per_minute=TOKENS, max_concurrent=3)


class Usage(UsageLog):
    """Notes the outcomes that are written down."""

    def __init__(self) -> None:
        super().__init__(Registry(), Prices(None), lambda: NOW_S)
        self.outcomes: list[RequestOutcome] = []

    def ended(self, exchange, outcome: RequestOutcome) -> None:
        del exchange
        self.outcomes.append(outcome)


class Tenants:
    """One quota for all tenants, of which `record` is what is used."""

    def __init__(self) -> None:
        self.record = LocalRecord()
        self._quota = Quota(LIMITS, lambda: NOW_S, self.record)

    def quota(self, _: Tenant) -> Quota:
        return self._quota

    @property
    def running(self) -> float:
        return self.record.own[RUNNING]

    @property
    def held_tokens(self) -> float:
        return self.record.own[HELD_TOKENS]

    @property
    def left(self) -> list[int]:
        """The requests and the tokens that the quota would still allow, as clients are told."""
        lines = self._quota.headers().decode().splitlines()
        return [int(line.split(": ")[1]) for line in lines if "remaining" in line]


class Scene:
    def __init__(self, queue: int = QUEUE, counts: Counts | None = None) -> None:
        self.tenants, self.usage = Tenants(), Usage()
        self.admission = AdmissionController(self.tenants, self.usage, queue, 60.0, counts=counts)

    def reserve(self, sequences: int = 1, exchange: Exchange | None = None, **options: bool):
        return self.admission.reserve(exchange or Exchange("acme"), sequences, SEATS, **options)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def outcome(prompt_tokens: int, generated_tokens: int) -> RequestOutcome:
    return RequestOutcome(
        status=200,
        reason="stop",
        names=("toy",),
        prompt_tokens=prompt_tokens,
        cached_tokens=0,
        generated_tokens=generated_tokens,
        times=RequestTimes(0.0, 1.0),
    )


def test_an_ended_request_has_used_its_prompt_and_what_it_generated(scene):
    reservation = scene.reserve(2)
    reservation.charge(30, 20)
    assert (scene.tenants.running, scene.tenants.held_tokens, scene.tenants.left) == (1, 50, [9, 50])
    ended = outcome(30, 4)
    reservation.close(ended)
    assert (scene.tenants.running, scene.tenants.held_tokens, scene.tenants.left) == (0, 0, [9, 66])
    assert (scene.admission.held, scene.usage.outcomes) == (0, [ended])
    reservation.close(ended)
    reservation.release()
    assert (scene.admission.held, scene.tenants.running, scene.tenants.left) == (0, 0, [9, 66])
    assert scene.usage.outcomes == [ended]


@pytest.mark.parametrize("charged", [False, True])
def test_a_request_that_did_not_start_has_used_no_tokens_and_is_not_written_down(scene, charged):
    before = scene.reserve()
    before.charge(30, 0)
    before.close(outcome(30, 10))
    reservation = scene.reserve(3)
    if charged:
        reservation.charge(20, 10)
        assert (scene.tenants.held_tokens, scene.tenants.left) == (30, [8, 30])
    reservation.release()
    assert (scene.tenants.running, scene.tenants.held_tokens, scene.tenants.left) == (0, 0, [8, 60])
    assert len(scene.usage.outcomes) == 1


def test_a_request_without_room_was_one_of_the_quota_and_holds_nothing():
    scene = Scene(queue=0)
    first = scene.reserve(SEATS)
    first.charge(10, 0)
    with pytest.raises(QueueFullError):
        scene.reserve(1)
    with pytest.raises(RequestError, match="at most 8"):
        scene.reserve(SEATS + 1)
    assert (scene.tenants.running, scene.tenants.held_tokens, scene.tenants.left) == (1, 10, [7, 90])
    assert scene.admission.held == SEATS


def test_a_request_over_its_quota_takes_no_room_and_is_told_what_is_left(scene):
    held = [scene.reserve() for _ in range(3)]
    exchange = Exchange("acme")
    with pytest.raises(RateLimitError, match="3 requests are in flight"):
        scene.reserve(1, exchange)
    assert b"x-ratelimit-remaining-requests: 7\r\n" in exchange.extra_headers
    assert (scene.admission.held, scene.tenants.running) == (3, 3)
    held[0].release()
    exchange = Exchange("acme")
    scene.reserve(1, exchange)
    assert exchange.extra_headers == b""


def test_a_prompt_over_the_quota_is_told_what_is_left(scene):
    exchange = Exchange("acme")
    reservation = scene.reserve(1, exchange)
    with pytest.raises(RateLimitError):
        reservation.charge(TOKENS + 1, 0)
    assert b"x-ratelimit-remaining-tokens: 100\r\n" in exchange.extra_headers
    reservation.charge(TOKENS, 1)
    assert exchange.extra_headers.endswith(scene.tenants.quota(LIMITS).headers())
    assert exchange.extra_headers.count(b"remaining-tokens") == 2
    assert scene.tenants.held_tokens == TOKENS


def test_background_work_counts_for_no_quota(scene):
    held = [scene.reserve(1, Exchange("acme", background=True)) for _ in range(4)]
    assert (scene.tenants.running, scene.tenants.left) == (0, [10, 100])
    held[0].charge(1000, 1000)
    held[0].release()
    assert (scene.admission.background, scene.tenants.left) == (3, [10, 100])


@pytest.mark.parametrize(("arrived_s", "expected"), [(None, NOW_S), (3.5, 3.5), (0.0, 0.0)])
def test_a_request_arrives_when_all_of_it_was_here_or_when_it_is_admitted(scene, arrived_s, expected):
    exchange = Exchange("acme")
    exchange.request.arrived_s = arrived_s
    assert scene.reserve(1, exchange).arrived_s == expected


@pytest.mark.parametrize(
    ("held", "sequences", "is_refused"),
    [(2, 3, False), (5, 3, False), (0, 8, False), (6, 3, True), (8, 1, True), (12, 3, True)],
)
def test_a_request_that_would_not_wait_is_refused_where_it_would_have_to(held, sequences, is_refused):
    scene = Scene()
    if held:
        scene.reserve(held)
    if is_refused:
        with pytest.raises(QueueFullError, match="rejectIfBusy"):
            scene.reserve(sequences, reject_if_busy=True)
        assert (scene.admission.held, scene.tenants.running, scene.tenants.left[0]) == (held, 1, 9)
        scene.reserve(sequences)
    else:
        scene.reserve(sequences, reject_if_busy=True)
    assert scene.admission.held == held + sequences


def test_requests_for_a_model_that_is_not_there_have_places_in_the_queue():
    """No seat counts before the model is there: only the queue's places do."""
    scene = Scene(queue=2)
    admission = scene.admission
    with admission.early(Exchange("acme")):
        assert (admission.held, admission.early_held) == (1, 1)
        with admission.early(Exchange("other")):
            assert (admission.held, admission.early_held) == (2, 2)
            with pytest.raises(QueueFullError), admission.early(Exchange("third")):
                pass
            assert (admission.held, admission.early_held) == (2, 2)
        assert (admission.held, admission.early_held) == (1, 1)
    assert (admission.held, admission.early_held, scene.tenants.running) == (0, 0, 0)


def test_a_place_for_a_model_that_fails_to_come_is_given_back():
    scene = Scene(queue=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="load"), scene.admission.early(Exchange("acme")):
            raise ValueError("load")
        assert (scene.admission.held, scene.admission.early_held) == (0, 0)
    scene.reserve(SEATS + 1)


def test_nobody_waits_for_a_model_while_draining(scene):
    scene.admission.draining = True
    with pytest.raises(EngineDeadError, match="shutting down"), scene.admission.early(Exchange("acme")):
        pass
    assert (scene.admission.held, scene.admission.early_held) == (0, 0)


def test_requests_that_wait_for_the_model_do_not_make_it_busy(scene):
    admission = scene.admission
    assert not admission.is_busy
    with admission.early(Exchange("acme")):
        assert not admission.is_busy
        with scene.reserve():
            assert admission.is_busy
        assert not admission.is_busy
        with scene.reserve(1, Exchange("acme", background=True)):
            assert admission.is_busy
        assert not admission.is_busy
    with scene.reserve():
        assert admission.is_busy
    with scene.reserve(1, Exchange("acme", background=True)):
        assert admission.is_busy
    assert not admission.is_busy


def test_a_request_in_the_engines_queue_is_in_line_until_it_ends(scene):
    reservation, told = scene.reserve(), []
    reservation.wait(told.append)
    assert scene.admission.line == {reservation: (NOW_S, told.append)}
    reservation.release()
    assert scene.admission.line == {}
    scene.admission.sweep(1000.0)
    assert told == []


def test_tenants_are_counted_where_they_have_a_name_and_sequences():
    """Requests that only ask for texts have none; an open server knows no names."""
    counts = LocalCounts()
    scene = Scene(counts=counts)
    held = [scene.reserve(2, Exchange("")), scene.reserve(0, Exchange("acme")), scene.reserve(3)]
    assert counts.record("model  tenant acme").own[HELD] == 3
    for reservation in held:
        reservation.release()
    assert counts.record("model  tenant acme").own[HELD] == 0
    assert counts.record("model  tenant ").own[HELD] == 0
    assert scene.admission.held == 0


def test_processes_share_places_and_each_knows_its_own():
    counts = SharedCounts.make(2)
    other = SharedCounts(os.dup(counts.fd), 1, 2)
    one, two = Scene(counts=counts), Scene(counts=other)
    mine, theirs = one.reserve(3), two.reserve(2)
    two.reserve(1, Exchange("acme", background=True))
    assert [(s.admission.held, s.admission.own_held, s.admission.background) for s in (one, two)] == [
        (5, 3, 1),
        (5, 2, 1),
    ]
    with two.admission.early(Exchange("acme")):
        assert (one.admission.early_held, one.admission.held, one.admission.own_held) == (1, 6, 3)
    mine.release()
    assert (two.admission.held, two.admission.own_held) == (2, 2)
    theirs.release()
    assert (one.admission.held, two.admission.own_held) == (0, 0)
    other.close()
    counts.close()


def test_prefixes_are_shared_within_a_tenant_and_a_salt():
    asked = [None, "", "a", "b"]
    salts = {(tenant, salt): cache_salt(tenant, salt) for tenant in (b"one", b"two") for salt in asked}
    assert len(set(salts.values())) == len(salts)
    assert salts[b"one", None] == b"one"
    assert salts[b"one", "a"] == cache_salt(b"one", "a")
    assert {len(salt) for (_, asked), salt in salts.items() if asked is not None} == {16}
