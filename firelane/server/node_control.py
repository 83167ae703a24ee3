"""Control over the models of a node, for the gateway's handlers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

from firelane.api.node import NodeModelReport, NodeReport
from firelane.errors import EngineDeadError, FirelaneError, RequestError
from firelane.gateway.requests.models import ServedModel
from firelane.node.model import NodeModel
from firelane.node.node import Node
from firelane.node.states import State
from firelane.server.model import Model

Update = Callable[[str, str, str, float], Awaitable[None]]


class Control:
    """Control over a node's models for the gateway. engines: by the model's name. update: as
    ModelSet.update."""

    def __init__(
        self,
        node: Node,
        engines: Callable[[str], Model],
        update: Update,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._update = update
        self._node, self._engines, self._clock = node, engines, clock

    def report(self) -> NodeReport:
        return NodeReport(
            budget_bytes=self._node.policy.budget_bytes,
            used_bytes=self._node.used_bytes,
            models=[self._model(model) for model in self._node],
        )

    def keep_s(self, model: ServedModel) -> float | None:
        return self._node[model.name].left_here_s(self._clock())

    async def load(self, model: ServedModel, within_s: float) -> None:
        try:
            await asyncio.wait_for(self._node.want(self._node[model.name]), within_s)
        except TimeoutError as error:
            state = self._node[model.name].state.value
            raise EngineDeadError(f"{model.name} is not ready after {within_s:g} s: it is {state}") from error

    async def sleep(self, model: ServedModel, within_s: float) -> None:
        await self._node.sleep(self._node[model.name], within_s)

    async def unload(self, model: ServedModel, within_s: float) -> None:
        await self._node.unload(self._node[model.name], within_s)

    async def pull(self, model: ServedModel) -> None:
        with _told():
            await self._node.pulls.pull(self._node[model.name])

    def pulled(self, model: ServedModel) -> tuple[int, int]:
        return self._node[model.name].pulled

    async def remove(self, model: ServedModel) -> int:
        with _told():
            return await self._node.pulls.remove(self._node[model.name])

    def check_pause(self, model: ServedModel) -> None:
        if self._engines(model.name).is_shared:
            raise RequestError("requests of several gateway processes cannot be paused together")

    async def update(self, model: ServedModel, source: str, version: str, within_s: float) -> None:
        await self._update(model.name, source, version, within_s)

    async def load_adapter(self, model: ServedModel, name: str, directory: Path, *, in_place: bool) -> None:
        await self._engines(model.name).adapters.load(name, directory, in_place=in_place)

    async def unload_adapter(self, model: ServedModel, name: str) -> None:
        await self._engines(model.name).adapters.unload(name)

    def _model(self, model: NodeModel) -> NodeModelReport:
        now_s, served = self._clock(), self._engines(model.name).served
        admission = None if served is None else served.admission
        return NodeModelReport(
            name=model.name,
            aliases=[] if served is None else list(served.aliases),
            state=model.state.value,
            doing=_doing(model, served),
            reason=model.reason,
            state_s=round(now_s - model.lifecycle.since_s, 3),
            idle_s=round(now_s - model.last_used_s, 3),
            priority=model.policy.priority,
            pinned=model.policy.pinned,
            pulled_bytes=model.pulled[0],
            pull_bytes=model.pulled[1],
            held_bytes=model.held_bytes,
            need_bytes=model.need_bytes,
            requests=0 if admission is None else admission.held - admission.early_held + admission.background,
            waiting=model.waiting,
            loads=model.arrivals.loads,
            wakes=model.arrivals.count,
            memory_s=round(model.arrivals.memory_s, 3),
            load_s=round(model.arrivals.load_s, 3),
            wake_s=round(model.arrivals.wake_s, 3),
            evictions=model.evictions,
            failures=model.failed,
            retry_s=max(0.0, round(model.retry_at_s - now_s, 1)),
        )


def _doing(model: NodeModel, served: ServedModel | None) -> str:
    """The progress of a model that comes; "" of others."""
    if model.state is State.PULLING and model.pulled[1]:
        done, total = (nbytes / 1e6 for nbytes in model.pulled)
        return f"{done:.0f} of {total:.0f} MB"
    return served.reason if model.state is State.LOADING and served is not None else ""


@contextlib.contextmanager
def _told() -> Generator[None]:
    """The fault of a source, as an answer."""
    try:
        yield
    except (EngineDeadError, RequestError):
        raise
    except FirelaneError as error:
        raise EngineDeadError(str(error)) from error
