"""Metrics of a node's models, whichever there are at the scrape."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from firelane.api.node import STATES, NodeModelReport, NodeReport
from firelane.gateway.requests.control import FixedModels, add_node_metrics
from firelane.node.states import State
from firelane.telemetry.metrics import Registry


def model(name: str, state: str, **fields: Any) -> NodeModelReport:
    zeros = {
        name: 0
        for name, kind in NodeModelReport.__annotations__.items()
        if kind in ("int", "float") and name not in fields
    }
    return NodeModelReport(
        name=name, state=state, aliases=[], doing="", reason="", pinned=False, **zeros, **fields
    )


class Control(FixedModels):
    def __init__(self) -> None:
        self.models: list[NodeModelReport] = []

    def report(self) -> NodeReport:
        return NodeReport(budget_bytes=100, used_bytes=30, models=self.models)


@pytest.fixture
def control() -> Control:
    return Control()


def scraped(registry: Registry) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(registry.render().decode())
    return {
        (sample.name.removeprefix("firelane:"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("firelane:")
    }


def test_each_model_has_one_state_and_its_counts(control: Control) -> None:
    registry = Registry()
    add_node_metrics(registry, control)
    assert scraped(registry) == {("node_memory_bytes",): 30, ("node_budget_bytes",): 100}
    control.models = [
        model(
            "a",
            "ready",
            state_s=5.0,
            held_bytes=30,
            wakes=2,
            loads=1,
            load_s=3.5,
            wake_s=0.5,
            memory_s=0.25,
            evictions=1,
        ),
        model("b", "pulling", waiting=3, pulled_bytes=7, failures=4),
    ]
    found = scraped(registry)
    assert [key[1:] for key, value in found.items() if key[0] == "model_state" and value] == [
        ("a", "ready"),
        ("b", "pulling"),
    ]
    assert sum(key[0] == "model_state" for key in found) == 2 * len(STATES)
    assert found["model_state_seconds", "a"] == 5
    assert found["model_memory_bytes", "a"] == 30
    assert (found["model_wakes_total", "a"], found["model_evictions_total", "a"]) == (2, 1)
    assert found["model_loads_total", "a"] == 1
    times = ("load", "wake", "memory_wait")
    assert [found[f"model_{name}_seconds_total", "a"] for name in times] == [3.5, 0.5, 0.25]
    assert (found["model_waiting", "b"], found["model_pulled_bytes", "b"]) == (3, 7)
    assert found["model_failures_total", "b"] == 4


def test_states_are_those_of_the_node() -> None:
    assert sorted(STATES) == sorted(state.value for state in State)
