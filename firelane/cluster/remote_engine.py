"""One engine on another host, as a gateway keeps it: connected, and connected again after each end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from firelane.cluster.addresses import Place
from firelane.cluster.dial import Dialed
from firelane.engine_state import EngineLifecycle, Unreachable
from firelane.errors import PeerLostError

log = logging.getLogger(__name__)
Dial = Callable[[Place], Awaitable[Dialed]]


class RemoteLink(Protocol):
    """The gateway's end of one engine."""

    name: str
    lifecycle: EngineLifecycle

    def adopt(self, stream: asyncio.Transport, number: int, head: bytes) -> Awaitable[str]:
        """Take a connection. Returns the reason of its end when it has ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class BackOff:
    """Waits between two connections of one engine: they double from first_s to most_s, and begin anew after a
    connection that lasted sound_s. A host that refuses for good is asked each most_s: it may be
    replaced."""

    first_s: float = 0.2
    most_s: float = 10.0
    sound_s: float = 5.0


class RemoteEngine:
    """Owns the making of connections; the link owns the connection itself. wanted: it is to be connected
    again when its connection ends; on_gone: called when it is not, and has ended."""

    def __init__(
        self,
        place: Place,
        link: RemoteLink,
        dial: Dial,
        on_gone: Callable[[RemoteEngine], None],
        back_off: BackOff | None = None,
    ) -> None:
        self.place, self.link, self.wanted = place, link, True
        self._dial, self._on_gone = dial, on_gone
        self._back_off = back_off or BackOff()
        self._told = ""
        self._task = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Connect no more; the link is closed by its owner."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _keep(self) -> None:
        back_off, loop = self._back_off, asyncio.get_running_loop()
        delay_s = back_off.first_s
        while self.wanted:
            began_s = loop.time()
            try:
                dialed = await self._dial(self.place)
            except PeerLostError as error:
                self._note(str(error))
                delay_s = delay_s if error.is_passing else back_off.most_s
            else:
                self._note_end(await self.link.adopt(dialed.transport, dialed.number, bytes(dialed.head)))
                if loop.time() - began_s > back_off.sound_s:
                    delay_s = back_off.first_s
            if self.wanted:
                await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, back_off.most_s)
        self._on_gone(self)

    def _note_end(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            log.warning("engine_lost address=%s reason=%r", self.place, reason)

    def _note(self, reason: str) -> None:
        """Each reason once, however often it comes."""
        self.link.lifecycle.change(Unreachable(f"engine at {self.place}: {reason}"))
        if reason != self._told:
            self._told = reason
            log.warning("engine_not_reached address=%s reason=%r; it is tried again", self.place, reason)
