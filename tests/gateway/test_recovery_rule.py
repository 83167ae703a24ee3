"""The rule for requests whose engine has died: who fails, and who goes on, together or alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import EngineDeadError
from firelane.gateway.engines import recovery
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.recovery import PROGRESS_TOKENS, NoRecovery, Resume
from firelane.wire.frames import NewRequest, Sampling

MOST_ENGINES = recovery.MOST_DEATHS + 1
"""That one request can kill."""


def flights_of(count, *, begun=0):
    flights = [InFlight(NewRequest(id=i, prompt=b"", sampling=Sampling()), None) for i in range(count)]
    for flight in flights[:begun]:
        flight.running = True
    return flights


def die(flights, *, begun, on_trial=None):
    """An engine that had begun the first few of these dies."""
    for index, flight in enumerate(flights):
        flight.running = index < begun
    return Resume().judge(flights, on_trial, "x")


def failed(verdict):
    return [flight for flight, _ in verdict.fail]


def test_two_deaths_with_one_that_had_begun_it_prove_nothing():
    """Two engines that are killed together: the second one had not begun what it got from the first."""
    flights = flights_of(1)
    assert die(flights, begun=1).resume == flights
    assert die(flights, begun=0).resume == flights


def test_a_single_suspect_without_proofs_gets_a_trial():
    flights = flights_of(1)
    for begun in (1, 0):
        die(flights, begun=begun)
    assert die(flights, begun=0).alone == flights
    assert failed(die(flights, begun=0, on_trial=flights[0])) == flights


def test_a_single_request_fails_with_the_second_engine_that_had_begun_it():
    flights = flights_of(1)
    die(flights, begun=1)
    ((guilty, error),) = die(flights, begun=1).fail
    assert guilty is flights[0]
    assert (error.code, str(error)[:15]) == ("engine_died_repeatedly", "2 engines died ")


def test_of_several_suspects_the_one_on_trial_fails():
    flights = flights_of(3)
    die(flights, begun=3)
    assert die(flights, begun=3).alone == flights
    verdict = die(flights[1:2], begun=0, on_trial=flights[1])
    assert failed(verdict) == flights[1:2]


def test_engines_out_of_sight_prove_nothing():
    """A network that fails again and again, and at last an engine that dies."""
    flights = flights_of(3, begun=3)
    for loss in range(1, recovery.MOST_UNSEEN):
        verdict = Resume().judge(flights, None, "x", is_seen=False)
        assert (verdict.resume, verdict.alone)[loss >= recovery.MOST_LOSSES] == flights
    assert not verdict.fail
    trial = flights[1]
    trial.tokens.extend(range(PROGRESS_TOKENS + 1))
    assert die([trial], begun=1, on_trial=trial).resume == [trial]


def test_a_request_that_makes_all_hosts_fall_silent_fails_at_last():
    flights = flights_of(1, begun=1)
    verdicts = [Resume().judge(flights, flights[0], "x", is_seen=False) for _ in range(recovery.MOST_UNSEEN)]
    assert [bool(verdict.fail) for verdict in verdicts] == [False] * (recovery.MOST_UNSEEN - 1) + [True]


def test_progress_clears_a_suspect():
    flights = flights_of(2)
    die(flights, begun=2)
    flights[0].tokens.extend(range(PROGRESS_TOKENS + 1))
    verdict = die(flights, begun=2)
    assert verdict.resume == flights[:1]
    assert failed(verdict) == flights[1:]


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
    assert verdict.alone == flights[:1]
    assert verdict.resume == flights[1:]


def test_nothing_is_lost_without_end(monkeypatch):
    monkeypatch.setattr(recovery, "NEXT_IN_QUEUE", 0)
    flights = flights_of(1)
    verdicts = [die(flights, begun=0) for _ in range(recovery.MOST_LOSSES)]
    assert [bool(verdict.alone) for verdict in verdicts] == [False] * (recovery.MOST_LOSSES - 1) + [True]
    assert failed(die(flights, begun=0, on_trial=flights[0])) == flights


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12), st.integers(1, 40))
def test_who_fails_had_two_proofs_or_was_on_trial(deaths, count):
    """Whatever is killed from outside; each death: how many of the flights had begun, whether they had got on
    since the last one."""
    flights = flights_of(count)
    begun_without_progress = 0
    for begun, progress in deaths:
        for flight in flights:
            flight.tokens.extend(range(progress * (PROGRESS_TOKENS + 1)))
        begun_without_progress = (0 if progress else begun_without_progress) + (begun > 0)
        verdict = die(flights, begun=begun)
        assert sorted(f.id for f in [*verdict.resume, *verdict.alone, *failed(verdict)]) == list(range(count))
        assert not verdict.fail or begun_without_progress >= 2
        if verdict.fail:
            return


@given(st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_a_request_that_kills_fails_and_no_other(before, behind, said):
    """Among others that are begun with it. said: the engine had said that it has begun with them."""
    flights = flights_of(before + 1 + behind)
    poison = flights[before]
    together, trials, engines = flights, [], 0
    while True:
        on_trial = trials.pop(0) if trials and poison not in together else None
        at_engine = [on_trial] if on_trial is not None else together
        if poison not in at_engine:
            continue  # it gets on, and ends
        engines += 1
        verdict = die(at_engine, begun=len(at_engine) if said else 0, on_trial=on_trial)
        if verdict.fail:
            break
        together, trials = verdict.resume, [*trials, *verdict.alone]
    assert failed(verdict) == [poison]
    assert engines <= (MOST_ENGINES if before < recovery.NEXT_IN_QUEUE else recovery.MOST_LOSSES + 1)


def test_without_recovery_all_fail():
    flights = flights_of(1)
    verdict = NoRecovery().judge(flights, None, "x")
    assert isinstance(verdict.fail[0][1], EngineDeadError)
    assert not verdict.resume
    assert not NoRecovery().waits


@pytest.mark.parametrize("count", [1, 40])
def test_a_verdict_speaks_of_each_once(count):
    flights = flights_of(count)
    for _ in range(2):
        verdict = die(flights, begun=count)
    assert len(verdict.resume) + len(verdict.alone) + len(verdict.fail) == count
