"""Control over which models are in memory, as the gateway's handlers see it, and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from firelane.api.node import STATES, NodeModelReport, NodeReport
from firelane.errors import RequestError
from firelane.gateway.requests.models import ServedModel
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


class NodeControl(Protocol):
    """Whoever owns the engines of all models. What is asked for has happened when a coroutine returns; each
    raises EngineDeadError where it cannot be done within its time.
    """

    def report(self) -> NodeReport: ...

    def keep_s(self, model: ServedModel) -> float | None:
        """Seconds until the model leaves memory if nobody asks for it; None: it stays."""
        ...

    async def load(self, model: ServedModel, within_s: float) -> None: ...
    async def sleep(self, model: ServedModel, within_s: float) -> None: ...
    async def unload(self, model: ServedModel, within_s: float) -> None: ...

    async def pull(self, model: ServedModel) -> None:
        """Return when the model's files are here."""
        ...

    def pulled(self, model: ServedModel) -> tuple[int, int]:
        """Bytes that a pull under way has fetched, of bytes; (0, 0) where it does not know them yet."""
        ...

    async def remove(self, model: ServedModel) -> int:
        """Take the model's files away; returns how many bytes. Raises RequestError where it is in memory."""
        ...

    def check_pause(self, model: ServedModel) -> None:
        """Raises RequestError where requests for the model come by other processes, too."""
        ...

    async def update(self, model: ServedModel, source: str, version: str, within_s: float) -> None:
        """Have new requests get the weights of another source, named `version`. Raises RequestError where
        that cannot be."""
        ...

    async def load_adapter(self, model: ServedModel, name: str, directory: Path, *, in_place: bool) -> None:
        """Have the model's engines serve an adapter by this name; where it is taken, only `in_place`. Raises
        RequestError where it is not one for this model."""
        ...

    async def unload_adapter(self, model: ServedModel, name: str) -> None:
        """Take no new requests for an adapter. Raises NotFoundError where there is none."""
        ...


class FixedModels:
    """Control of a gateway whose models are there from its start to its end."""

    def report(self) -> NodeReport:
        return NodeReport(budget_bytes=None, used_bytes=0, models=[])

    def keep_s(self, model: ServedModel) -> float | None:
        del model

    async def load(self, model: ServedModel, within_s: float) -> None:
        raise _fixed(model, within_s)

    async def sleep(self, model: ServedModel, within_s: float) -> None:
        raise _fixed(model, within_s)

    async def unload(self, model: ServedModel, within_s: float) -> None:
        raise _fixed(model, within_s)

    async def pull(self, model: ServedModel) -> None:
        """Its files are here."""

    def pulled(self, model: ServedModel) -> tuple[int, int]:
        del model
        return 0, 0

    async def remove(self, model: ServedModel) -> int:
        raise _fixed(model, 0.0)

    def check_pause(self, model: ServedModel) -> None:
        """All requests come here."""

    async def update(self, model: ServedModel, source: str, version: str, within_s: float) -> None:
        del source, version
        raise _fixed(model, within_s)

    async def load_adapter(self, model: ServedModel, name: str, directory: Path, *, in_place: bool) -> None:
        del name, directory, in_place
        raise _fixed(model, 0.0)

    async def unload_adapter(self, model: ServedModel, name: str) -> None:
        del name
        raise _fixed(model, 0.0)


FIXED: NodeControl = FixedModels()


def _fixed(model: ServedModel, within_s: float) -> RequestError:
    del within_s
    return RequestError(
        f"the models of this server are fixed: {model.name} stays as it is", code="models_fixed"
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
