"""Answers that are made while no client waits for them: each has an Exchange of its own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from firelane.api.errors import ErrorEnvelope, envelope
from firelane.api.stored.responses import ResponseFailure, ResponseObject
from firelane.gateway.http.exchange import EVENT_STREAM, JSON, ErrorForm, Exchange

_ERRORS: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)


class BackgroundExchange:
    """An Exchange that outlives its client's. on_end: called once, when the answer has ended or was
    cancelled; its status says how. The answer itself goes where its format puts it. on_events: takes the
    events of an answer that is streamed; None where it comes in one piece.
    """

    def __init__(
        self,
        client: Exchange,
        answer: ResponseObject,
        on_end: Callable[[ResponseObject], None],
        on_events: Callable[[bytes], None] | None = None,
    ) -> None:
        self.request = client.request
        self.id = client.id
        self.answer = answer
        self.extra_headers = b""
        self.started = on_events is not None  # what goes wrong becomes an event
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.error_form: ErrorForm | None = None
        self._on_end = on_end
        self._on_events = on_events

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: bytes = b"") -> None:  # noqa: ARG002
        if self.gone:
            return
        self.started = self.gone = True
        self.on_gone = None
        if status != 200:
            self.answer.status = "failed"
            message = _ERRORS.decode(body).error.message
            self.answer.error = ResponseFailure(code="server_error", message=message)
        self._on_end(self.answer)

    def start_stream(self, content_type: bytes = EVENT_STREAM) -> None:
        """Never: a stream has started from the beginning."""
        raise AssertionError(content_type)

    def send(self, data: bytes) -> None:
        assert self._on_events is not None
        if not self.gone:
            self._on_events(data)

    async def drained(self) -> None:
        pass

    def end(self) -> None:
        if not self.gone:
            self.gone = True
            self.on_gone = None
            self._on_end(self.answer)

    def abort(self) -> None:
        self.respond(500, envelope(500, "internal error: see the server's log", code="internal_error"))

    def cancel(self) -> None:
        """End it as cancelled; nothing where it has ended."""
        if self.gone:
            return
        self.gone = True
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()
        self.answer.status = "cancelled"
        self._on_end(self.answer)
