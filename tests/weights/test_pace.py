"""Work beside steps: rests by a clock of the test's own."""

from __future__ import annotations

import pytest

from firelane.weights.packing.check import QUIET_S, SHARE, StepPace

PIECE_S = 0.002


class Worker:
    """A thread that works in pieces: `time_s` goes on by what it works and rests, `worked_s` by the first."""

    def __init__(self) -> None:
        self.time_s = self.worked_s = 0.0
        self.rests: list[float] = []
        self.pace = StepPace(clock=lambda: self.time_s, worked=lambda: self.worked_s)
        self.pace.rest(self)

    def wait(self, timeout: float) -> None:
        self.rests.append(timeout)
        self.time_s += timeout

    def pieces(self, count: int) -> None:
        for _ in range(count):
            self.worked_s += PIECE_S
            self.time_s += PIECE_S
            self.pace.rest(self)


def test_without_a_step_it_never_rests() -> None:
    worker = Worker()
    worker.pieces(10)
    assert worker.rests == []


def test_beside_a_step_it_works_for_its_share() -> None:
    worker = Worker()
    worker.pace.step_begins()
    worker.pieces(10)
    assert worker.rests == pytest.approx([PIECE_S * 9] * 10)
    assert worker.worked_s == pytest.approx(SHARE * worker.time_s)


def test_between_two_steps_it_goes_on_resting() -> None:
    worker = Worker()
    for _ in range(3):
        worker.pace.step_begins()
        worker.pace.step_ends()
        worker.pieces(1)
    assert len(worker.rests) == 3


def test_after_the_last_step_it_has_all_the_time() -> None:
    worker = Worker()
    worker.pace.step_begins()
    worker.pieces(1)
    worker.pace.step_ends()
    worker.time_s += QUIET_S
    worker.pieces(5)
    assert len(worker.rests) == 1


def test_a_pause_of_its_own_is_no_work() -> None:
    worker = Worker()
    worker.pace.step_begins()
    worker.time_s += 1.0  # the machine had no time for it
    worker.pieces(1)
    assert worker.rests == pytest.approx([PIECE_S * 9])


def test_the_first_rest_counts_nothing() -> None:
    """A thread's time begins with the thread, which may be older than its work."""
    worker = Worker()
    worker.pace = StepPace(clock=lambda: worker.time_s, worked=lambda: 100.0)
    worker.pace.step_begins()
    worker.pace.rest(worker)
    assert worker.rests == []
