"""Residence of a model in memory, as the gateway sees it: whoever owns the engines brings them and puts them
away.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

REJECT_COLD = b"x-firelane-reject-if-cold"
"""Header of requests that do not wait for a model to come to memory."""


class Residence(Protocol):
    """The residence of one model. state: in words, "" where its engines tell. reason: why it does not
    serve."""

    @property
    def is_cold(self) -> bool:
        """A request has to wait for `want` before it can be served."""
        ...

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def left_s(self) -> int:
        """When it is worth asking again."""
        ...

    @property
    def leaves(self) -> bool:
        """It may leave memory, and come back."""
        ...

    @property
    def deadline_s(self) -> float:
        """Longest time that a request waits."""
        ...

    def used(self, keep_s: float | None) -> None:
        """A request came. keep_s: how long the model is to stay after it (below 0: for ever); None: as it is
        set up."""
        ...

    async def want(self) -> None:
        """Return when the model serves. Raises EngineDeadError where it will not soon."""
        ...

    async def changed(self) -> None:
        """Return when anything of this is another than before."""
        ...


class AlwaysResident:
    """The residence of a model that is in memory for as long as the gateway serves."""

    is_cold = leaves = False
    state = reason = ""
    left_s = 1
    deadline_s = 0.0

    def used(self, keep_s: float | None) -> None:
        del keep_s

    async def want(self) -> None:
        return

    async def changed(self) -> None:
        await asyncio.get_running_loop().create_future()


ALWAYS: Residence = AlwaysResident()


def rejects_cold(headers: dict[bytes, bytes]) -> bool:
    return headers.get(REJECT_COLD, b"").strip().lower() in (b"1", b"true", b"yes")
