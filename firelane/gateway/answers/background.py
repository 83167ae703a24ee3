"""Answers that are made while no client waits for them: each has an Exchange of its own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from firelane.api.errors import ErrorEnvelope, envelope
from firelane.api.responses import ResponseFailure, ResponseObject
from firelane.gateway.http.exchange import EVENT_STREAM, JSON, ErrorForm, Exchange

_ERRORS: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)


class BackgroundExchange:
    """An Exchange that outlives its client's. on_end: called once, when the answer has ended otherwise than
    well, or was cancelled; then its status says how. The answer itself goes where its format puts it.
    """

    def __init__(
        self,
        client: Exchange,
        answer: ResponseObject,
        on_end: Callable[[ResponseObject], None],
    ) -> None:
        self.request = client.request
        self.id = client.id
        self.answer = answer
        self.extra_headers = b""
        self.started = self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.error_form: ErrorForm | None = None
        self._on_end = on_end

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
        """Never: these answers come in one piece."""
        raise AssertionError(content_type)

    def send(self, data: bytes) -> None:
        raise AssertionError(data)

    async def drained(self) -> None:
        pass

    def end(self) -> None:
        raise AssertionError(self.id)

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
