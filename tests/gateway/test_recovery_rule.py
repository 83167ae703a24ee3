"""The rule for requests whose engine has died: who fails, and who goes on, together or alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import EngineDeadError
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.recovery import recovery
from firelane.gateway.engines.recovery.recovery import PROGRESS_TOKENS, Death, NoRecovery, Resume
from firelane.wire.frames import NewRequest, Sampling

MOST_ENGINES = recovery.MOST_DEATHS + 2
"""That one request can kill by crashes."""


def flights_of(count, *, begun=0):
    flights = [InFlight(NewRequest(id=i, prompt=b"", sampling=Sampling()), None) for i in range(count)]
    for flight in flights[:begun]:
        flight.running = True
    return flights


def die(flights, *, begun, on_trial=None, is_alone=False, is_crash=False):
    """An engine that had begun the first few of these dies."""
    for index, flight in enumerate(flights):
        flight.running = index < begun
    return Resume().judge(flights, Death("x", on_trial, is_alone, is_crash))


def unseen(flights, on_trial=None):
    return Resume().judge(flights, Death("x", on_trial, is_seen=False))


def failed(verdict):
    return [flight for flight, _ in verdict.fail]


def test_two_deaths_with_one_that_had_begun_it_prove_nothing():
    """Two engines that are killed together: the second one had not begun what it got from the first."""
    flights = flights_of(1)
    assert die(flights, begun=1).resume == flights
    assert die(flights, begun=0).resume == flights


def test_who_waits_for_another_engine():
    assert Resume().waits
    assert not NoRecovery().waits


def test_a_suspect_is_never_refused_before_its_trial():
    """However often engines died with it among others."""
    flights = flights_of(40)
    for _ in range(30):
        verdict = die(flights, begun=20)
        assert not verdict.fail
        assert not verdict.alone
    assert verdict.one_by_one == flights  # they were lost too often, at last


def test_a_single_request_has_its_trial_too():
    flights = flights_of(1)
    assert die(flights, begun=1).resume == flights
    assert die(flights, begun=1).one_by_one == flights


def test_who_is_on_trial_when_an_engine_dies_is_accused_and_no_other():
    """Others that have passed run beside it: it is not alone."""
    flights = flights_of(3)
    for _ in range(2):
        die(flights, begun=3)
    flights[0].tokens.extend(range(PROGRESS_TOKENS + 1))
    verdict = die(flights[:2], begun=2, on_trial=flights[1], is_crash=True)
    assert (verdict.resume, verdict.alone, verdict.fail) == (flights[:1], flights[1:2], [])


def test_the_accused_fails_with_an_engine_that_crashes_while_it_is_alone():
    (flight,) = flights = flights_of(1)
    for on_trial in (None, None, flight):
        die(flights, begun=1, on_trial=on_trial, is_crash=True)
    ((guilty, error),) = die(flights, begun=1, on_trial=flight, is_alone=True, is_crash=True).fail
    assert guilty is flight
    assert (error.code, str(error)[:15]) == ("engine_died_repeatedly", "4 engines died ")


def test_engines_that_were_perhaps_killed_prove_less():
    (flight,) = flights = flights_of(1)
    for on_trial in (None, None, flight):
        die(flights, begun=1, on_trial=on_trial)
    for _ in range(recovery.SOLO_DEATHS - 1):
        assert die(flights, begun=1, on_trial=flight, is_alone=True).alone == flights
    assert failed(die(flights, begun=1, on_trial=flight, is_alone=True)) == flights


def test_engines_out_of_sight_of_one_that_is_alone_prove_nothing():
    (flight,) = flights = flights_of(1)
    for on_trial in (None, None, flight):
        die(flights, begun=1, on_trial=on_trial)
    for _ in range(recovery.SOLO_DEATHS + 1):
        assert unseen(flights, flight).one_by_one == flights


def test_engines_out_of_sight_prove_nothing():
    """A network that fails again and again, and at last an engine that dies."""
    flights = flights_of(3, begun=3)
    for loss in range(1, recovery.MOST_UNSEEN):
        verdict = unseen(flights)
        assert (verdict.resume, verdict.one_by_one)[loss >= recovery.MOST_LOSSES] == flights
    assert not verdict.fail
    trial = flights[1]
    trial.tokens.extend(range(PROGRESS_TOKENS + 1))
    assert die([trial], begun=1, on_trial=trial).resume == [trial]


def test_a_request_that_makes_all_hosts_fall_silent_fails_at_last():
    flights = flights_of(1, begun=1)
    verdicts = [unseen(flights, flights[0]) for _ in range(recovery.MOST_UNSEEN)]
    assert [bool(verdict.fail) for verdict in verdicts] == [False] * (recovery.MOST_UNSEEN - 1) + [True]


def test_progress_clears_a_suspect():
    flights = flights_of(2)
    die(flights, begun=2)
    flights[0].tokens.extend(range(PROGRESS_TOKENS + 1))
    verdict = die(flights, begun=2)
    assert verdict.resume == flights[:1]
    assert verdict.one_by_one == flights[1:]


def test_who_was_on_trial_and_has_gone_on_is_not_guilty():
    flights = flights_of(2)
    for _ in range(2):
        die(flights, begun=2)
    flights[0].tokens.extend(range(PROGRESS_TOKENS + 1))
    assert die(flights[:1], begun=1, on_trial=flights[0]).resume == flights[:1]


def test_what_waits_far_behind_is_not_suspected_soon(monkeypatch):
    monkeypatch.setattr(recovery, "NEXT_IN_QUEUE", 1)
    flights = flights_of(3)
    for _ in range(recovery.MOST_DEATHS - 1):
        assert die(flights, begun=0).resume == flights
    verdict = die(flights, begun=0)
    assert verdict.one_by_one == flights[:1]
    assert verdict.resume == flights[1:]


def test_nothing_is_lost_without_end(monkeypatch):
    monkeypatch.setattr(recovery, "NEXT_IN_QUEUE", 0)
    flights = flights_of(1)
    verdicts = [die(flights, begun=0) for _ in range(recovery.MOST_LOSSES)]
    suspected = [bool(verdict.one_by_one) for verdict in verdicts]
    assert suspected == [False] * (recovery.MOST_LOSSES - 1) + [True]
    assert die(flights, begun=0, on_trial=flights[0]).alone == flights


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=30), st.integers(1, 40))
def test_nobody_fails_who_was_not_alone(deaths, count):
    """Whatever kills engines; each death: how many of the flights had begun, whether they had got on since
    the last one, whether the engine crashed. The first one is on trial each time, but never alone."""
    flights = flights_of(count)
    for begun, progress, is_crash in deaths:
        for flight in flights:
            flight.tokens.extend(range(progress * (PROGRESS_TOKENS + 1)))
        verdict = die(flights, begun=begun, on_trial=flights[0], is_crash=is_crash)
        told = [*verdict.resume, *verdict.one_by_one, *verdict.alone]
        assert sorted(flight.id for flight in told) == list(range(count))
        assert not verdict.fail


@given(st.integers(0, 30), st.integers(0, 30), st.booleans(), st.booleans())
def test_a_request_that_kills_fails_and_no_other(before, behind, said, is_crash):
    """Among others that are begun with it. said: the engine had said that it has begun with them."""
    flights = flights_of(before + 1 + behind)
    poison = flights[before]
    together, suspects, accused, engines = flights, [], [], 0
    while True:
        is_alone = bool(accused)
        trials = accused or suspects
        on_trial = trials.pop(0) if trials and poison not in together else None
        at_engine = [on_trial] if on_trial is not None else together
        if poison not in at_engine:
            continue  # it gets on, and ends
        engines += 1
        begun = len(at_engine) if said else 0
        verdict = die(at_engine, begun=begun, on_trial=on_trial, is_alone=is_alone, is_crash=is_crash)
        if verdict.fail:
            break
        together = verdict.resume
        suspects, accused = [*suspects, *verdict.one_by_one], [*accused, *verdict.alone]
    assert failed(verdict) == [poison]
    most = MOST_ENGINES if before < recovery.NEXT_IN_QUEUE else recovery.MOST_LOSSES + 2
    assert engines <= most + (0 if is_crash else recovery.SOLO_DEATHS - 1)


def test_without_recovery_all_fail():
    flights = flights_of(1)
    verdict = NoRecovery().judge(flights, Death("x"))
    assert isinstance(verdict.fail[0][1], EngineDeadError)
    assert not verdict.resume
    assert not NoRecovery().waits


@pytest.mark.parametrize("count", [1, 40])
def test_a_verdict_speaks_of_each_once(count):
    flights = flights_of(count)
    for _ in range(2):
        verdict = die(flights, begun=count)
    assert len(verdict.resume) + len(verdict.one_by_one) == count
