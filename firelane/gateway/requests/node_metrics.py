"""Metrics of which models are in memory, as whoever owns their engines reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from firelane.api.node import STATES, NodeModelReport
from firelane.gateway.requests.control import NodeControl
from firelane.telemetry.metrics import Registry

Rows = Iterable[tuple[tuple[str, ...], float]]
Value = Callable[[NodeModelReport], float]
MODEL = ("model_name",)
_LEVELS: tuple[tuple[str, str, Value], ...] = (
    ("model_state_seconds", "Time in its state.", lambda model: model.state_s),
    ("model_memory_bytes", "Of the node's budget.", lambda model: model.held_bytes),
    ("model_waiting", "Requests that wait for the model to come.", lambda model: model.waiting),
    ("model_pulled_bytes", "Bytes of its files that the last pull found.", lambda model: model.pulled_bytes),
)
_COUNTS: tuple[tuple[str, str, Value], ...] = (
    ("model_wakes", "Times that it came to memory.", lambda model: model.wakes),
    ("model_loads", "Times that it came other than from standby.", lambda model: model.loads),
    ("model_load_seconds", "From the start of its loads until it served.", lambda model: model.load_s),
    ("model_wake_seconds", "From the start of its wakes from standby.", lambda model: model.wake_s),
    ("model_memory_wait_seconds", "Waited for memory, before both.", lambda model: model.memory_s),
    ("model_evictions", "Times that it left memory for another model.", lambda model: model.evictions),
    ("model_failures", "Times that it did not come.", lambda model: model.failures),
)


def add_node_metrics(registry: Registry, control: NodeControl) -> None:
    """One value a model, also of those that come and go while the gateway serves."""

    def rows(value: Value) -> Callable[[], Rows]:
        return lambda: [((model.name,), value(model)) for model in control.report().models]

    def states() -> Rows:
        for model in control.report().models:
            for state in STATES:
                yield (model.name, state), float(model.state == state)

    registry.levels("firelane:model_state", "1 for the model's state.", (*MODEL, "state"), states)
    for name, text, value in _LEVELS:
        registry.levels(f"firelane:{name}", text, MODEL, rows(value))
    for name, text, value in _COUNTS:
        registry.levels(f"firelane:{name}", text, MODEL, rows(value), monotonic=True)
    registry.gauge("firelane:node_memory_bytes", "Held by all models.", lambda: control.report().used_bytes)
    registry.gauge(
        "firelane:node_budget_bytes",
        "Memory that all models may hold; 0: no limit.",
        lambda: control.report().budget_bytes or 0,
    )
