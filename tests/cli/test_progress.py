"""Progress: a bar on a terminal, few lines elsewhere."""

from __future__ import annotations

import io

import pytest

from firelane.cli.progress import ProgressDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_few_and_complete() -> None:
    out = io.StringIO()
    display = ProgressDisplay(out)
    for done in range(0, 1001):
        display("pack", done * 1e6, 1000 * 1e6, "B")
    display("pack", 1e9, 1e9, "B")
    lines = out.getvalue().splitlines()
    assert lines[0] == "pack: 0%, 1 GB"
    assert lines[-1] == "pack: 100%, 1 GB"
    assert len(lines) == 5


def test_stages_that_run_together_keep_their_lines_apart() -> None:
    out = io.StringIO()
    display = ProgressDisplay(out)
    display("pack", 0, 10, "B")
    display("compile", 0, 1, "unit")
    display("pack", 1, 10, "B")
    display("compile", 1, 1, "unit")
    display("pack", 10, 10, "B")
    assert out.getvalue().splitlines() == [
        "pack: 0%, 10 B",
        "compile: 0%",
        "compile: 100%",
        "pack: 100%, 10 B",
    ]


@pytest.mark.parametrize("total", [0.0, 1.0])
def test_nothing_to_do_is_done(total: float) -> None:
    out = io.StringIO()
    ProgressDisplay(out)("load", total, total, "B")
    assert out.getvalue().startswith("load: 100%")


def test_bar_on_a_terminal() -> None:
    out = Terminal()
    display = ProgressDisplay(out)
    display("pack", 0, 100, "B")
    display("pack", 100, 100, "B")
    display.close()
    display.close()
    assert "pack: 100%" in out.getvalue()
