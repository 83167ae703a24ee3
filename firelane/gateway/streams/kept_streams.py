"""Streams that clients can come back to: which requests ask for that, and how they are answered."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Coroutine
from typing import Any

from firelane.errors import NotFoundError, RequestError
from firelane.gateway.config import StreamLimits
from firelane.gateway.http.exchange import Exchange, Request
from firelane.gateway.http.relay import RequestRelay
from firelane.gateway.streams.event_log import EventLog
from firelane.gateway.streams.event_logs import EventLogs
from firelane.gateway.streams.kept_exchange import DELETED, KeptExchange
from firelane.telemetry.metrics import Registry

RESUME = b"x-stream-resume"
"""Header of requests whose stream is kept: true, false, or seconds that it goes on without a reader."""
STREAM_ID = b"x-stream-id"
"""Header of their answers."""
_SECONDS = re.compile(rb"\d{1,9}", re.ASCII)
Generate = Callable[[str, Exchange], Coroutine[Any, Any, None]]
"""It gets the answer's id, too."""


class StreamState(enum.Enum):
    """Whether a stream is kept, and still made."""

    NONE = "none"
    RUNNING = "running"
    ENDED = "ended"


class KeptStreams:
    """The kept streams of a server. relay: to the process that keeps them, None: this one."""

    def __init__(self, limits: StreamLimits, relay: RequestRelay | None = None) -> None:
        self._relay = relay
        self.logs = EventLogs(limits.all_bytes, limits.tenant_bytes, limits.keep_s)
        self._limits = limits
        self._running: dict[EventLog, KeptExchange] = {}

    def away_s(self, request: Request, *, stream: bool | None, store: bool = False) -> float | None:
        """Seconds that a stream goes on without a reader, None of one that is not kept. store: it is to be
        kept where the header says nothing. Raises RequestError.
        """
        given = request.headers.get(RESUME)
        if (given is None and not store) or not stream:
            return None
        if request.background or given == b"false":
            return None
        if not self._limits.tenant_bytes:
            _refused(given)
            return None
        if given in (None, b"true"):
            return self._limits.away_s
        most = self._limits.most_away_s
        if _SECONDS.fullmatch(given or b"") is None or int(given or b"") > most:
            shown = (given or b"")[:40].decode("latin-1")
            raise RequestError(
                f"the header {RESUME.decode()} is '{shown}': use true, false, or 0 to {most:g} seconds",
                param=RESUME.decode(),
            )
        return float(given or b"")

    def add_metrics(self, registry: Registry) -> None:
        """Tell how many there are, and what they take."""
        logs = self.logs
        registry.gauge("firelane:kept_streams", "Streams that clients can come back to.", lambda: len(logs))
        registry.gauge("firelane:kept_stream_bytes", "Bytes of their events.", lambda: logs.bytes_held)

    @property
    def readers(self) -> int:
        """Clients that read one now, or have another process answer them."""
        return self.logs.readers + (0 if self._relay is None else self._relay.open)

    def body_of(self, exchange: Exchange) -> bytes | bytearray:
        """The body of a request that may have to go to another process; b"" where there is none."""
        return b"" if self._relay is None else exchange.request.body

    async def answer(
        self,
        exchange: Exchange,
        body: bytes | bytearray,
        answer_id: str,
        generate: Generate,
        *,
        stream: bool | None,
        store: bool = False,
    ) -> None:
        """Answer a request with a stream that is kept, where it asks for that. body: as `body_of` gave it.
        generate: has the engine answer an exchange. store: the answer is kept by the process that keeps
        streams. Raises RequestError.
        """
        away_s = self.away_s(exchange.request, stream=stream, store=store)
        if self._relay is not None and (store or away_s is not None):
            await self._relay.forward(exchange, body)
        elif away_s is None:
            await generate(answer_id, exchange)
        else:
            await self._keep(exchange, answer_id, away_s, generate)

    async def _keep(self, exchange: Exchange, answer_id: str, away_s: float, generate: Generate) -> None:
        log = self.logs.begin(exchange.request.tenant, answer_id, numbered=True)
        head = _head(answer_id)
        work = KeptExchange(exchange, self.logs, log, head, away_s, lambda: self._drop(log))
        self._running[log] = work
        try:
            await generate(answer_id, work)
        except BaseException:
            self._abandon(exchange, answer_id, log)
            exchange.extra_headers += work.extra_headers
            raise
        if work.gone and not log.ended:  # refused, or its client went before it knew the id
            self._abandon(exchange, answer_id, log)
            return
        work.open()
        await log.follow(exchange, 0)

    def _abandon(self, exchange: Exchange, answer_id: str, log: EventLog) -> None:
        self._drop(log)
        self.logs.forget(exchange.request.tenant, answer_id)

    def _drop(self, log: EventLog) -> None:
        self._running.pop(log, None)

    def read(self, exchange: Exchange, answer_id: str, after: int | None) -> Coroutine[None, None, None]:
        """Stream the events after this number, None: all. Raises NotFoundError, and RequestError where there
        is no such event.
        """
        log = self._find(exchange, answer_id)
        number = 0 if after is None else after + 1
        if number < log.first:
            raise NotFoundError(
                f"events of '{answer_id}' are kept from number {log.first} on: those before are forgotten, "
                "as the stream was too long to be kept whole",
                param="starting_after",
                code="events_forgotten",
            )
        if number > log.next:
            raise RequestError(
                f"there is no event {after} yet: the next one of '{answer_id}' is number {log.next}",
                param="starting_after",
            )
        exchange.extra_headers += _head(answer_id)
        return log.follow(exchange, number)

    def state(self, exchange: Exchange, answer_id: str) -> StreamState:
        """The state of a stream of whoever asks."""
        log = self.logs.get(exchange.request.tenant, answer_id)
        if log is None:
            return StreamState.NONE
        return StreamState.ENDED if log.ended else StreamState.RUNNING

    def forget(self, exchange: Exchange, answer_id: str) -> None:
        """End it where it runs, and forget its events. Raises NotFoundError."""
        work = self._running.get(self._find(exchange, answer_id))
        if work is not None:
            work.cancel("the stream was deleted while it was made", DELETED)
        self.logs.forget(exchange.request.tenant, answer_id)

    def not_found(self, answer_id: str) -> NotFoundError:
        return NotFoundError(
            f"no stream '{answer_id[:80]}' is kept here: it was made without `{RESUME.decode()}`, has ended "
            f"more than {self._limits.keep_s:g} s ago, was deleted, pushed out by newer ones, or belongs to "
            "another key; ask again",
            code="stream_not_found",
        )

    def _find(self, exchange: Exchange, answer_id: str) -> EventLog:
        log = self.logs.get(exchange.request.tenant, answer_id)
        if log is None:
            raise self.not_found(answer_id)
        return log


def _head(answer_id: str) -> bytes:
    return b"%b: %b\r\n" % (STREAM_ID, answer_id.encode())


def _refused(given: bytes | None) -> None:
    """Raises RequestError where a header asks for what this server does not do."""
    if given is not None:
        raise RequestError(
            f"this server keeps no streams (tenant_streams_mib = 0): leave `{RESUME.decode()}` out",
            param=RESUME.decode(),
            code="unsupported_parameter",
        )
