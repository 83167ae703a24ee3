"""Progress: one line that moves on a terminal, few lines elsewhere, other lines above it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from functools import partial

import pytest

from firelane.server.progress import ProgressDisplay
from firelane.server.start_lines import StartLines
from firelane.telemetry import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def display_on(out: io.StringIO, clock: Clock) -> ProgressDisplay:
    return ProgressDisplay(out, clock=clock, tick_s=None)


def screen(out: io.StringIO) -> list[str]:
    """Return the lines that a terminal shows."""
    rows = [""]
    for piece in out.getvalue().replace("\r\x1b[K", "\f").split("\n"):
        rows[-1] = piece.rpartition("\f")[2].rstrip("\r")
        rows.append("")
    return rows[:-1]


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_the_clock_moves_while_nothing_is_reported(clock: Clock) -> None:
    out = Terminal()
    display = display_on(out, clock)
    display("compile", 0, 1, "unit")
    clock.now_s += 1.0
    display.tick()
    assert screen(out) == ["compiling kernels for this machine, once 1 s"]
    clock.now_s += 3.0
    display.tick()
    assert screen(out) == ["compiling kernels for this machine, once 4 s"]


def test_a_bar_tells_megabytes_and_the_time_that_is_left(clock: Clock) -> None:
    out = Terminal()
    display = display_on(out, clock)
    display("pack", 0, 2e9, "B")
    clock.now_s += 2.0
    display("pack", 5e8, 2e9, "B")
    display.tick()
    assert screen(out) == ["packing weights [#####---------------] 500 of 2,000 MB 2 s, 6 s left"]
    display("pack", 2e9, 2e9, "B")
    display.close()
    display.close()
    assert screen(out) == ["packing weights: 2,000 MB done in 2.0 s", ""]


def test_stages_that_run_together_share_the_line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    display = display_on(out, clock)
    display("capture", 1, 8, "graph")
    display("compile", 0, 1, "unit")
    clock.now_s += 0.5
    display.tick()
    whole = "capturing graphs [##------------------] 1 of 8 graph 0 s; "
    whole += "compiling kernels for this machine, once 0 s"
    assert screen(out) == [whole]
    monkeypatch.setenv("COLUMNS", "40")
    display.tick()
    assert screen(out) == [whole[:39]]


def test_what_is_over_in_a_moment_is_not_shown(clock: Clock) -> None:
    for out in (Terminal(), io.StringIO()):
        display = display_on(out, clock)
        display("compile", 0, 1, "unit")
        clock.now_s += 0.2
        display.tick()
        display("compile", 1, 1, "unit")
        clock.now_s += 1.0
        display.tick()
        display.close()
        assert out.getvalue() == ""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Left as it was found."""
    logger = logging.getLogger("firelane")
    before = logger.handlers[:], logger.level, logger.propagate
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.usefixtures("logger")
def test_logs_are_written_above_the_line_that_moves(clock: Clock) -> None:
    out = Terminal()
    display = display_on(out, clock)
    logs.set_up("info", stream=display)
    display("compile", 0, 1, "unit")
    clock.now_s += 1.0
    display.tick()
    logging.getLogger("firelane.test").warning("disk_nearly_full")
    assert [row.rpartition(" ")[2] for row in screen(out)] == ["disk_nearly_full", "s"]
    display.close()
    display.say("ready")
    assert screen(out)[1:] == ["ready", ""]


@pytest.mark.parametrize("term", ["dumb", None])
def test_lines_where_nothing_can_move(
    clock: Clock, term: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO() if term is None else Terminal()
    monkeypatch.setenv("TERM", term or "xterm")
    display = display_on(out, clock)
    display("pack", 0, 1e9, "B")
    for eighth in range(1, 121):
        clock.now_s += 0.125
        display("pack", eighth * 1e9 / 120, 1e9, "B")
        display.tick()
    assert out.getvalue().splitlines() == [
        "packing weights: 25 of 1,000 MB",
        "packing weights: 692 of 1,000 MB, 10 s, 5 s left",
        "packing weights: 1,000 MB done in 15.0 s",
    ]


def test_a_thread_of_its_own_keeps_the_clock_moving() -> None:
    out = Terminal()
    display = ProgressDisplay(out, tick_s=0.001)
    display("load", 0, 1, "unit")
    ticker = display._ticker
    assert ticker is not None
    assert ticker.daemon
    display.close()
    ticker.join(60)
    assert not ticker.is_alive()


def test_logs_pass_the_display_by_once_the_start_is_told(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    out = Terminal()
    display = display_on(out, clock)
    logger = logging.getLogger("firelane")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    request.addfinalizer(partial(logger.setLevel, logger.level))
    logs.set_up("info", "text", display)
    display("load", 0, 1, "unit")
    clock.now_s += 1.0
    display.tick()
    logger.info("during the start")
    assert screen(out)[-1].startswith("load")
    StartLines(display).close()
    written: list[str] = []
    monkeypatch.setattr(display, "write", written.append)
    logger.info("after the start")
    assert written == []
    assert [line.split("firelane ")[1] for line in screen(out) if line] == [
        "during the start",
        "after the start",
    ]
