"""Figures that several processes share."""

from __future__ import annotations

import os
import signal

import pytest

from firelane.errors import RateLimitError
from firelane.gateway.tenants.counts import LocalCounts, LocalRecord, SharedCounts
from firelane.gateway.tenants.tenant import HELD_TOKENS, RUNNING, Quota, Tenant


class Shared:
    """Three places of one memory, all in this process."""

    def __init__(self, records: int = 64) -> None:
        owner = SharedCounts.make(3, records)
        self.places = [owner, *(SharedCounts(os.dup(owner.fd), place, 3, records) for place in (1, 2))]

    def close(self) -> None:
        for place in self.places:
            place.close()


@pytest.fixture
def places():
    shared = Shared()
    yield shared.places
    shared.close()


def quotas(places, **limits) -> list[Quota]:
    tenant = Tenant(name="acme", **limits)
    return [Quota(tenant, lambda: 5.0, place.record("tenant acme")) for place in places]


def test_a_record_is_the_same_wherever_it_is_asked_for(places) -> None:
    owner, one, two = (place.record("a") for place in places)
    one.common[3] = 7.5
    one.own[0], two.own[0] = 2, 3
    assert owner.common[3] == two.common[3] == 7.5
    assert [record.total(0) for record in (owner, one, two)] == [5, 5, 5]
    assert places[1].record("b").total(0) == 0


def test_names_that_fall_on_one_place_are_told_apart() -> None:
    shared = Shared(records=8)
    for number in range(8):
        shared.places[number % 3].record(f"name {number}").own[0] = number
    assert [shared.places[0].record(f"name {number}").total(0) for number in range(8)] == list(range(8))
    shared.close()


def test_one_name_too_many_counts_for_itself(caplog) -> None:
    shared = Shared(records=2)
    for name in "abc":
        shared.places[0].record(name)
    assert isinstance(shared.places[0].record("c"), LocalRecord)
    assert "shared_counts_full" in caplog.text
    shared.close()


def test_requests_at_a_time_are_counted_over_all(places) -> None:
    one, two, three = quotas(places, max_concurrent=2)
    one.admit()
    two.admit()
    with pytest.raises(RateLimitError, match="2 requests are in flight"):
        three.admit()
    two.end(0)
    three.admit()


def test_rates_are_one_bucket(places) -> None:
    one, two, _ = quotas(places, requests_per_minute=2, tokens_per_minute=100)
    one.admit()
    two.admit()
    with pytest.raises(RateLimitError, match="2 requests a minute"):
        one.admit()
    held = one.take_tokens(50, 10)
    with pytest.raises(RateLimitError, match="100 tokens a minute"):
        two.take_tokens(50, 0)
    one.end(held, 20)
    assert b"x-ratelimit-remaining-tokens: 80" in two.headers()


def test_a_new_limit_counts_what_was_used(places) -> None:
    one, two, _ = quotas(places, tokens_per_minute=100)
    one.admit()
    one.take_tokens(60, 0)
    two.update(Tenant(name="acme", tokens_per_minute=1000))
    assert b"x-ratelimit-remaining-tokens: 940" in two.headers()
    assert b"x-ratelimit-remaining-tokens: 40" in one.headers()


def test_what_a_process_held_goes_back(places) -> None:
    one, two, _ = quotas(places, max_concurrent=2, tokens_per_minute=100)
    for quota in (one, two):
        quota.admit()
        quota.take_tokens(30, 0)
    places[0].give_back(1)
    record = places[2].record("tenant acme")
    assert (record.total(RUNNING), record.total(HELD_TOKENS)) == (1, 30)
    assert b"x-ratelimit-remaining-tokens: 70" in two.headers()
    one.admit()


def test_local_records_are_kept_by_name() -> None:
    counts = LocalCounts()
    counts.record("a").own[0] += 1
    assert (counts.record("a").total(0), counts.record("b").total(0)) == (1, 0)


def _child(fd: int, turn: int) -> None:
    """Takes requests until it is killed."""
    record = SharedCounts(fd, 1, 3).record("tenant acme")
    os.write(turn, b"x")
    while True:
        with record.turn():
            record.common[0] += 1
            record.own[0] += 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_killed_within_its_turn_stops_nobody() -> None:
    """At whatever instruction it dies, the lock is free, and the sums are wrong by one at most."""
    shared = SharedCounts.make(3)
    record = shared.record("tenant acme")
    for _ in range(5):
        began, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(shared.fd, told)
        os.read(began, 1)
        for _ in range(50):
            with record.turn():
                record.common[1] += 1
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with record.turn():
            assert 0 <= record.common[0] - record.total(0) <= 1
        shared.give_back(1)
        record.common[0] = 0
        os.close(began)
        os.close(told)
    assert record.common[1] == 250
    shared.close()
