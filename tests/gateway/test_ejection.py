"""Engines that serve worse than their peers: which get no new requests, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link import delivery
from firelane.gateway.engines.link.delivery import Delivery
from firelane.gateway.engines.recovery.ejection import NoEjection, OutlierEjection, OutlierRule, Wait
from firelane.wire.frames import EngineStats, NewRequest, Sampling, Started, StepFrame

RULE = OutlierRule()
SOUND, SLOW = Wait(1000, 0.1), Wait(1000, 2.0)


@dataclass
class Engine:
    name: str
    life: int = 1
    role: str = "both"


def engines(number):
    return [Engine(str(i)) for i in range(number)]


def names(ejection, some, now_s=0.0):
    return "".join(engine.name for engine in ejection.admitted(some, now_s))


def noted(some, waits, times=RULE.waits):
    ejection = OutlierEjection(RULE)
    for engine, wait in zip(some, waits, strict=True):
        for _ in range(times):
            ejection.note(engine, wait)
    return ejection


def test_the_plain_twin_keeps_none_away():
    ejection, some = NoEjection(), engines(2)
    ejection.note(some[0], SLOW)
    ejection.lost(some[0], 0.0)
    assert ejection.admitted(some, 0.0) is some
    assert ejection.ejected == 0


@pytest.mark.parametrize("number", [2, 3, 5])
def test_a_slow_engine_gets_nothing_for_a_while(number):
    some = engines(number)
    ejection = noted(some, [SLOW] + [SOUND] * (number - 1))
    rest = names(NoEjection(), some[1:])
    assert names(ejection, some) == rest
    assert ejection.ejected == 1
    assert names(ejection, some, RULE.first_s - 0.01) == rest
    assert names(ejection, some, RULE.first_s) == "0" + rest


def test_it_begins_anew_then_and_stays_away_longer_each_time():
    some, now_s = engines(3), 0.0
    ejection = noted(some, [SLOW, SOUND, SOUND])
    for times in range(8):
        for_s = min(RULE.most_s, RULE.first_s * 2**times)
        assert names(ejection, some, now_s) == "12"
        assert names(ejection, some, now_s + for_s - 0.01) == "12"
        now_s += for_s
        assert names(ejection, some, now_s) == "012"
        for _ in range(RULE.waits):
            ejection.note(some[0], SLOW)
    assert names(ejection, some, now_s + RULE.most_s + 1) == "12"
    assert names(ejection, some, now_s + RULE.most_s + 1 + RULE.first_s) == "012"


@pytest.mark.parametrize(
    "waits",
    [
        [SOUND, SOUND, SOUND],
        [SLOW, SLOW, SLOW],
        [Wait(20_000, 2.0), SOUND, SOUND],
        [Wait(10, 0.2), Wait(10, 0.001), Wait(10, 0.001)],
    ],
    ids=["alike", "all slow", "long prompts", "short waits"],
)
def test_what_has_a_reason_ejects_nobody(waits):
    some = engines(3)
    assert names(noted(some, waits), some) == "012"


@pytest.mark.parametrize("over", [0.99, 1.01])
def test_what_counts_is_the_share_of_a_wait_that_is_over_its_peers(over):
    """An engine five times as slow has four fifths of its wait in excess."""
    seconds = over * RULE.excess_s / (1 - 1 / 5)
    slow, sound = Wait(100_000, seconds), Wait(100_000, seconds / 5)
    ejection = noted(engines(2), [slow, sound])
    assert names(ejection, engines(2)) == ("1" if over > 1 else "01")


def test_few_waits_prove_nothing():
    some = engines(2)
    assert names(noted(some, [SLOW, SOUND], RULE.waits - 1), some) == "01"


def test_another_life_is_another_engine():
    some = engines(2)
    ejection = noted(some, [SLOW, SOUND])
    some[0].life = 2
    ejection.note(some[0], SOUND)
    assert names(ejection, some) == "01"


def test_no_more_than_half_are_kept_away():
    some = engines(5)
    ejection = noted(some, [SLOW, SLOW, SLOW, SOUND, SOUND])
    for seen in range(3):
        for _ in range(3):
            ejection.lost(some[seen], 0.0)
    assert names(ejection, some) == "234"
    assert names(ejection, some[:2]) == "01"  # rather one of those than none


def test_those_that_are_away_take_the_room_of_others():
    """Two of four may be away: one is, so of two further ones that fail only one goes."""
    some = engines(4)
    ejection = noted(some, [SLOW, SOUND, SOUND, SOUND])
    assert names(ejection, some) == "123"
    for failing in some[1:3]:
        for _ in range(RULE.losses):
            ejection.lost(failing, 0.0)
    assert names(ejection, some) == "23"


def test_one_wait_among_many_counts_as_its_share():
    some = engines(3)
    ejection = noted(some, [SOUND, SOUND, SOUND])
    ejection.note(some[0], Wait(1000, 1.5))  # fifteen times as long: a mean of 3.8 times
    assert names(ejection, some) == "012"


def test_an_engine_that_is_lost_again_and_again_gets_nothing_for_a_while():
    some = engines(2)
    ejection = OutlierEjection(RULE)
    for now_s in (0.0, 50.0, 100.0):
        ejection.lost(some[0], now_s)
        assert names(ejection, some, now_s) == "01"
    ejection.lost(some[0], 101.0)
    assert names(ejection, some, 101.0) == "1"
    assert names(ejection, some, 101.0 + RULE.first_s) == "01"


def test_engines_are_compared_with_those_of_their_role():
    some = [Engine("0", role="prefill"), Engine("1", role="decode"), Engine("2", role="decode")]
    assert names(noted(some, [SLOW, SOUND, SOUND]), some) == "012"


def test_an_engine_alone_is_all_there_is():
    some = engines(1)
    ejection = OutlierEjection(RULE)
    for _ in range(5):
        ejection.lost(some[0], 0.0)
    assert names(ejection, some) == "0"


class Sink:
    def on_started(self, cached_tokens, planned_s):
        pass

    def on_tokens(self, tokens, now_s):
        pass


def flight(number, tokens):
    return InFlight(NewRequest(id=number, prompt=bytes(4 * tokens), sampling=Sampling()), Sink())


def step(ids=(), started=()):
    return StepFrame(1, list(ids), [7] * len(ids), list(started), [], [], EngineStats())


def test_waits_count_what_was_computed_meanwhile(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(delivery.time, "monotonic", lambda: now_s)
    got = Delivery(lambda _: None)
    got.add(flight(1, 1000))
    got.deliver(step(started=[Started(1, 200)]), 101.0)
    assert got.waits == []
    now_s = 102.0
    got.add(flight(2, 50))
    got.deliver(step([1]), 103.0)
    assert got.waits == [Wait(800, 3.0)]
    got.deliver(step([1, 2], [Started(2, 0)]), 104.0)
    assert got.waits == [Wait(850, 2.0)]
    got.deliver(step([1, 2]), 105.0)
    assert got.waits == []


def test_a_request_that_goes_leaves_no_wait():
    got = Delivery(lambda _: None)
    got.add(flight(1, 10))
    got.deliver(step(started=[Started(1, 0)]), 0.0)
    got.remove(1)
    got.deliver(step(), 0.0)
    assert got.waits == []


def test_nothing_is_kept_of_engines_that_are_long_gone():
    """Names: those of engines on other hosts are new each time."""
    ejection = OutlierEjection(RULE)
    for number in range(100):
        gone = Engine(f"10.0.0.{number}:29600")
        ejection.note(gone, SOUND)
        ejection.lost(gone, number * RULE.window_s)
    assert len(ejection._seen) == 1
