"""Retry-After estimates how long a model still loads."""

from __future__ import annotations

from firelane.engine_state import MOST_S, UNKNOWN_S, LoadClock
from firelane.wire.frames import Progress


def test_without_a_report_it_is_worth_asking_soon():
    assert LoadClock().left_s(10.0) == 1


def test_a_measured_stage_goes_on_as_it_began():
    clock = LoadClock()
    clock.note(Progress("pack", 0, 1000, "B"), 10.0)
    assert clock.left_s(10.0) == UNKNOWN_S
    clock.note(Progress("pack", 250, 1000, "B"), 14.0)
    assert clock.left_s(14.0) == 12
    clock.note(Progress("pack", 1000, 1000, "B"), 26.0)
    assert clock.left_s(26.0) == 1


def test_what_was_done_before_the_first_report_counts_for_no_speed():
    clock = LoadClock()
    clock.note(Progress("pack", 500, 1000, "B"), 10.0)
    clock.note(Progress("pack", 600, 1000, "B"), 12.0)
    assert clock.left_s(12.0) == 8


def test_the_longest_stage_counts():
    clock = LoadClock()
    clock.note(Progress("compile", 0, 1, "unit"), 0.0)
    clock.note(Progress("pack", 0, 1000, "B"), 0.0)
    clock.note(Progress("pack", 900, 1000, "B"), 9.0)
    assert clock.left_s(9.0) == UNKNOWN_S
    clock.note(Progress("compile", 1, 1, "unit"), 9.0)
    assert clock.left_s(9.0) == 1
    clock.note(Progress("pack", 901, 10**9, "B"), 10.0)
    assert clock.left_s(10.0) == MOST_S
