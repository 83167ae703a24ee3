"""Signs of life for a client that streams, while its model comes to memory: comments among events, which
clients ignore and proxies see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from firelane.gateway.http.exchange import Exchange

SIGN_S = 2.5
"""Until the first one, and between two. A model that comes sooner leaves the answer as it was."""


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
