"""benchmarks/deadlines.py: its traces, and the engine's scheduler beside first come, first served."""

from __future__ import annotations

import importlib
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
        return importlib.import_module("deadlines")


def test_a_trace_is_read_up_to_its_time_without_what_does_not_fit(script, tmp_path):
    rows = [("18:15:46.6805900", 374, 44), ("18:15:48.0000000", 20000, 5), ("18:15:50.1805900", 396, 109)]
    rows += [("18:16:46.9000000", 879, 55)]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    text += "".join(f"2023-11-16 {at},{prompt},{output}\n" for at, prompt, output in rows)
    plain, packed = tmp_path / "a.csv", tmp_path / "a.csv.xz"
    plain.write_text(text)
    packed.write_bytes(lzma.compress(text.encode()))
    for path in (plain, packed):
        found = script.read_trace(path, 60.0)
        assert [(one.prompt, one.output) for one in found] == [(374, 44), (396, 109)]
        assert [one.arrival_s for one in found] == [0.0, pytest.approx(3.5)]


def test_a_trace_at_another_speed(script):
    trace = [script.TracedRequest(arrival_s=10.0 * i, prompt=5, output=1) for i in range(11)]
    assert [one.arrival_s for one in script.with_load(trace, 2.0, busy_s=50.0)][-1] == pytest.approx(25.0)


def traffic(script, load, count=250):
    rng = np.random.default_rng(3)
    trace = [
        script.TracedRequest(
            arrival_s=float(at_s), prompt=int(rng.integers(50, 3000)), output=int(rng.integers(2, 60))
        )
        for at_s in np.cumsum(rng.exponential(1.0, count))
    ]
    return script.with_deadlines(script.with_load(trace, load, script.busy_seconds(trace)), 0.5, 1.0, 1)


@pytest.mark.parametrize("load", [1.3, 2.0])
def test_more_deadlines_are_kept_than_in_order_of_arrival_and_others_wait_no_longer(script, load):
    trace = traffic(script, load)
    fcfs, ours = (script.figures_of(trace, script.simulate(trace, one)) for one in ("fcfs", "deadlines"))
    assert ours.goodput >= 1.3 * fcfs.goodput
    assert ours.p99_s <= 1.2 * fcfs.p99_s
    assert ours.refused > 0
    assert fcfs.refused == 0


def test_a_light_load_is_served_as_before(script):
    trace = traffic(script, 0.2, 60)
    fcfs, ours = (script.figures_of(trace, script.simulate(trace, one)) for one in ("fcfs", "deadlines"))
    assert ours.kept >= fcfs.kept - 0.02
    assert ours.p99_s <= 1.2 * fcfs.p99_s
