"""Waits of requests for models that come: taken apart, and why they were long."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.bench.test_scripts import SCRIPTS, load


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    return load("node_traffic_waits")


def answer(waits: ModuleType, asked_at: float, first_s: float, **fields: Any) -> Any:
    own = {"turn": 0, "model": "a", "state": "standby", "text": "x"} | fields
    return waits.Answer(asked_at=asked_at, first_s=first_s, **own)


def came(waits: ModuleType, at: float, took_s: float, memory_s: float = 0.0, **fields: Any) -> Any:
    own = {"turn": 0, "model": "a", "before": "standby", "deaths": 0} | fields
    return waits.Came(at=at, took_s=took_s, memory_s=memory_s, **own)


def calm(waits: ModuleType) -> Any:
    """A wake takes 0.5 s, a load 2 s, the rest 0.1 s."""
    wakes = {("a", "standby"): 0.5, ("a", "no engine"): 2.0}
    return waits.Calm(wakes, dict.fromkeys(wakes, 0.1))


def one(waits: ModuleType, asked: Any, comings: list[Any], ended: list[Any] | None = None) -> Any:
    (wait,) = waits.waits([asked], comings, ended or [], calm(waits))
    return wait


def test_lines_of_the_nodes_log_become_records(waits: ModuleType) -> None:
    messages = [
        (1.0, "model_came model=a before='standby' memory_s=9.000 took_s=9.000 deaths=0"),
        (5.0, "model_came model=m1 before='no engine' memory_s=0.250 took_s=1.500 deaths=2"),
        (6.0, "engine_exit model=m2 replica=0 engine process 7 was killed by SIGKILL lived_s=1.0"),
        (7.0, "model_state model=m2 state='ready' before='loading' for_s=1.0"),
    ]
    log = "\n".join(
        [json.dumps({"time": at, "message": text}) for at, text in messages] + ["model_came model=x"]
    )
    assert waits.node_events(log, 3, since=2.0) == [
        waits.Came(turn=3, model="m1", at=5.0, before="no engine", memory_s=0.25, took_s=1.5, deaths=2),
        waits.Ended(turn=3, model="m2", at=6.0),
    ]


def test_a_wait_is_memory_and_wake_and_rest(waits: ModuleType) -> None:
    wait = one(waits, answer(waits, 10.0, 2.0), [came(waits, 11.8, 0.5, 1.25)])
    parts = wait.memory_s, wait.wake_s, wait.rest_s, wait.own_s
    assert parts == pytest.approx((1.25, 0.5, 0.25, 0.6))
    assert wait.cause == "others had to leave memory first"


def test_who_comes_late_waits_for_what_is_left_of_a_wake(waits: ModuleType) -> None:
    wait = one(waits, answer(waits, 10.0, 1.1), [came(waits, 11.0, 4.0, 3.0)])
    assert (wait.memory_s, wait.wake_s) == pytest.approx((0.0, 1.0))
    assert (wait.over, wait.cause) == (pytest.approx(1.0), "")


@pytest.mark.parametrize("how", ["in the log", "in the coming", "twice"])
def test_a_death_is_a_cause_of_its_own(waits: ModuleType, how: str) -> None:
    """The own time is a calm load's, not the one with the death in it."""
    load = came(waits, 14.9, 4.0, before="no engine", deaths=int(how == "in the coming"))
    comings = [came(waits, 10.5, 0.5), load] if how == "twice" else [load]
    ended = [waits.Ended(turn=0, model="a", at=12.0)] if how == "in the log" else []
    wait = one(waits, answer(waits, 10.0, 5.0), comings, ended)
    assert (wait.died, wait.own_s, wait.cause) == (True, pytest.approx(2.1), "its engine died meanwhile")


def test_other_models_comings_and_deaths_count_for_nothing(waits: ModuleType) -> None:
    asked = answer(waits, 10.0, 1.0)
    others = [came(waits, 10.5, 0.5, model="b"), came(waits, 9.9, 0.5), came(waits, 11.1, 0.5)]
    assert waits.waits([asked], others, [], calm(waits)) == []
    ended = [waits.Ended(turn=0, model="b", at=10.2), waits.Ended(turn=0, model="a", at=9.0)]
    assert not one(waits, asked, [came(waits, 10.6, 0.5)], ended).died


@pytest.mark.parametrize(
    ("taken", "cause"), [(0.5, "others had the processor"), (0.0, "none of these")], ids=str
)
def test_a_long_rest_is_the_processors_or_nobodys(waits: ModuleType, taken: float, cause: str) -> None:
    wait = one(waits, answer(waits, 10.0, 2.0, taken=taken), [came(waits, 10.5, 0.5)])
    assert wait.cause == cause


def test_calm_figures_are_medians_by_where_a_model_came_from(waits: ModuleType) -> None:
    asked = [answer(waits, at, 1.0) for at in (10.0, 20.0, 30.0)]
    comings = [came(waits, at + 0.9, took_s) for at, took_s in ((10.0, 0.3), (20.0, 0.5), (30.0, 0.8))]
    found = waits.Calm.of(asked, comings)
    assert found.wakes == {("a", "standby"): 0.5}
    assert found.prefills == {("a", "standby"): 0.5}


def test_tables_have_a_row_for_each_cause(waits: ModuleType) -> None:
    asked = [answer(waits, 10.0, 0.6), answer(waits, 20.0, 3.0)]
    comings = [came(waits, 10.5, 0.5), came(waits, 22.9, 0.5, 2.4)]
    found = waits.waits(asked, comings, [], calm(waits))
    text = waits.tables(found, calm(waits))
    assert "| any | 2 | 3.000 | 3.000 | 0.600 | 0.600 | 5.00 | 5.00 | 5.00 | 1.00 | 1.00 |" in text
    assert "| others had to leave memory first | 1 | 50.0% | 2.40 | 66.7% |" in text


@pytest.mark.usefixtures("waits")
def test_records_of_a_turn_that_did_not_end_are_left_out(tmp_path: Path) -> None:
    script = load("node_traffic")
    path = tmp_path / "records.jsonl"
    records = script.Records(path)
    records.start()
    sizes = script.Sizes(needs=[1], standby=2, texts={"a": "x"})
    turn = script.Turn(turn=0, seconds=1.0, kills=0, load=0.0, starved=0.0)
    ask = script.Answer(turn=0, model="a", state="ready", asked_at=1.0, first_s=1.0, text="x")
    records.add(sizes, ask, turn, script.Failed(turn=1, model="a", why="it ended"))
    with path.open("ab") as file:
        file.write(b'{"type": "answer", "tu')  # killed while it wrote
    again = script.Records(path)
    again.start()
    assert (again.next_turn, again.sizes) == (1, sizes)
    assert script.Records(path).all == [sizes, ask, turn]
