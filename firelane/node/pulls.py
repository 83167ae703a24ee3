"""Files of a node's models: pulled when they are wanted, taken away when somebody says so, one work at a time
for each model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from firelane.errors import FirelaneError, RequestError
from firelane.node.model import NodeModel
from firelane.node.states import RESTS, State

Result = FirelaneError | None
Spawn = Callable[[Coroutine[Any, Any, Result]], asyncio.Task[Result]]


class Pulls:
    """Works of a node on files. Whoever asked for one may go: it ends all the same."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn

    async def pull(self, model: NodeModel, *, whole: bool = True) -> None:
        """Return when the model's files are here, in their newest version where it is not in memory. Raises
        FirelaneError."""
        if model.files_work is None:
            if not _is_at_rest(model):
                return
            model.files_work = self._spawn(self._working(model, self._pull(model, whole)))
        await _outcome(model.files_work)

    async def have(self, model: NodeModel) -> None:
        """Return when no work goes on, and the files are here. Raises FirelaneError."""
        while model.files_work is not None:
            await asyncio.wait([model.files_work])
        if not model.files.are_here:
            await self.pull(model, whole=False)

    async def remove(self, model: NodeModel) -> int:
        """Take a model's files away; returns how many bytes. Raises RequestError where it is in memory, or on
        its way there."""
        if not _is_at_rest(model) or model.files_work is not None or model.bringing is not None:
            raise RequestError(
                f"{model.name} is {model.state.value}: unload it first, its files are in use",
                code="model_in_use",
            )
        freed = 0

        async def work() -> None:
            nonlocal freed
            freed = await model.files.remove()
            if model.state is State.QUARANTINED:
                model.lifecycle.move(model.resting_state)

        model.files_work = self._spawn(self._working(model, work()))
        await _outcome(model.files_work)
        return freed

    async def stop(self, model: NodeModel) -> None:
        """End a pull; what has come stays for the next one."""
        if model.files_work is not None:
            model.files_work.cancel()
            await asyncio.wait([model.files_work])

    async def _working(self, model: NodeModel, work: Awaitable[None]) -> Result:
        """Error of the work, for all that wait for it."""
        error: Result = None
        try:
            await work
        except asyncio.CancelledError:
            error = FirelaneError(f"{model.name}: its pull was ended")
        except FirelaneError as found:
            error = found
        finally:
            model.files_work = None
            model.settle(str(error or ""))
        return error

    async def _pull(self, model: NodeModel, whole: bool) -> None:
        model.pulled = (0, 0)
        model.lifecycle.move(State.PULLING)
        await model.files.pull(model.note_pulled, whole=whole)
        if not model.files.are_here:
            raise FirelaneError(f"{model.name}: was pulled, but its files are not where they belong")


def _is_at_rest(model: NodeModel) -> bool:
    return model.state in RESTS or model.state is State.QUARANTINED


async def _outcome(work: asyncio.Task[Result]) -> None:
    error = await asyncio.shield(work)
    if error is not None:
        raise error
