"""Residence of a model in memory, as the gateway sees it: whoever owns the engines brings them and puts
them away. A client that streams gets signs of life meanwhile: comments among events, which clients ignore
and proxies see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from firelane.gateway.http.exchange import Exchange

REJECT_COLD = b"x-firelane-reject-if-cold"
"""Header of requests that do not wait for a model to come to memory."""
SIGN_S = 2.5
"""Until the first one, and between two. A model that comes sooner leaves the answer as it was."""


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


class WakeSigns:
    """A context manager around the wait. The stream begins with the first sign: what is wrong with the
    request after that is told by an event.
    """

    def __init__(self, exchange: Exchange, tell: Callable[[], str]) -> None:
        """tell: what the model is doing, in words."""
        self._exchange, self._tell = exchange, tell
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._again()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SIGN_S, self._sign)

    def _sign(self) -> None:
        exchange = self._exchange
        if exchange.gone:
            return
        if not exchange.started:
            exchange.request.streams_early = True
            exchange.start_stream()
        exchange.send(b": waiting: %b\n\n" % " ".join(self._tell().split()).encode())
        self._again()


def early_failure(exchange: Exchange, status: int, body: bytes) -> bytes:
    """The event that ends such a stream; body: an error envelope."""
    if exchange.error_form is None:
        return b"data: %b\n\n" % body
    return b"event: error\ndata: %b\n\n" % exchange.error_form(status, body)[1]
