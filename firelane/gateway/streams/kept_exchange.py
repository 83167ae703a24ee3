"""Streams that go on for a while when their client has gone: each has an Exchange of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firelane.api.errors import envelope
from firelane.gateway.http.exchange import EVENT_STREAM, JSON, ErrorForm, Exchange
from firelane.gateway.requests.residence import early_failure
from firelane.gateway.streams.event_log import EventLog
from firelane.gateway.streams.event_logs import EventLogs

LEFT, DELETED = "client_gone", "stream_deleted"
"""Codes of streams that were ended early."""


class KeptExchange:
    """An Exchange whose events go to a log, which clients read. Until `open` it ends with its client: nobody
    else knows of it. head: lines of the client's answer. away_s: how long it goes on while nobody reads it.
    on_end: called when its stream has ended.
    """

    def __init__(
        self,
        client: Exchange,
        logs: EventLogs,
        log: EventLog,
        head: bytes,
        away_s: float,
        on_end: Callable[[], None],
    ) -> None:
        self.request = client.request
        self.id = client.id
        self.extra_headers = b""
        self.started = False
        self.gone = client.gone
        self.on_gone: Callable[[], None] | None = None
        self.error_form: ErrorForm | None = client.error_form
        self._client = client
        self._logs = logs
        self._log = log
        self._head = head
        self._away_s = away_s
        self._is_open = False
        self._alone: asyncio.TimerHandle | None = None
        self._on_end = on_end
        client.on_gone = self._stop

    def _stop(self) -> None:
        """Nobody wants the rest."""
        self.gone = True
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()

    def open(self) -> None:
        """The engine has the request: clients may come and go from now on."""
        self.start_stream()
        self._is_open = True
        if not self.gone:
            self._log.on_readers = self._count

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """An answer before any event."""
        if self.gone:
            return
        self.started = self.gone = True
        self.on_gone = None
        self._tell_headers()
        self._client.respond(status, body, content_type=content_type, headers=headers)

    def start_stream(self, content_type: bytes = EVENT_STREAM) -> None:
        """That of the client; whoever else reads it starts one of its own."""
        if not self.started:
            self.started = True
            self._tell_headers()
            self._client.extra_headers += self._head
            self._client.start_stream(content_type)

    def _tell_headers(self) -> None:
        self._client.extra_headers += self.extra_headers
        self.extra_headers = b""

    def send(self, data: bytes) -> None:
        """Events, or a comment: one that comes before the log has readers is the client's alone."""
        if self.gone:
            return
        if not self._is_open and data.startswith(b":"):
            self._client.send(data)
        else:
            self._logs.append(self._log, data)

    async def drained(self) -> None:
        """The log is bounded."""

    def end(self) -> None:
        if not self.gone:
            self.gone = True
            self.on_gone = None
            self._close()

    def abort(self) -> None:
        """Never: what goes wrong is an event."""
        self.cancel("internal error: see the server's log", "internal_error")

    def cancel(self, message: str, code: str) -> None:
        """End it with an error as its last event; nothing where it has ended."""
        if self.gone:
            return
        self._stop()
        self._logs.append(self._log, early_failure(self, 400, envelope(400, message, code=code)))
        self._close()

    def _close(self) -> None:
        self._stop_waiting()
        self._logs.end(self._log)
        self._on_end()

    def _count(self, readers: int) -> None:
        """So many clients read it."""
        self._stop_waiting()
        if readers or self.gone:
            return
        if self._away_s:
            self._alone = asyncio.get_running_loop().call_later(self._away_s, self._give_up)
        else:
            self._give_up()

    def _stop_waiting(self) -> None:
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None

    def _give_up(self) -> None:
        self.cancel(f"nobody read the stream for {self._away_s:g} s: it was ended", LEFT)
