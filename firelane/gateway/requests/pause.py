"""Pauses of a model: new requests wait, those that run go on."""

from __future__ import annotations

import asyncio


class Pause:
    """The pause of one model, whatever its version. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._over: asyncio.Event | None = None

    @property
    def is_on(self) -> bool:
        return self._over is not None

    def begin(self) -> None:
        """Nothing changes where it is on."""
        self._over = self._over or asyncio.Event()

    def end(self) -> None:
        """Requests that wait go on."""
        over, self._over = self._over, None
        if over is not None:
            over.set()

    async def over(self) -> None:
        """Return when it is off."""
        while self._over is not None:
            await self._over.wait()
