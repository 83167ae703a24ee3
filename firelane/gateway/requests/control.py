"""Control over which models are in memory, as the gateway's handlers see it."""

from __future__ import annotations

from typing import Protocol

from firelane.api.node import NodeReport
from firelane.errors import RequestError
from firelane.gateway.requests.models import ServedModel


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


FIXED: NodeControl = FixedModels()


def _fixed(model: ServedModel, within_s: float) -> RequestError:
    del within_s
    return RequestError(
        f"the models of this server are fixed: {model.name} stays as it is", code="models_fixed"
    )
