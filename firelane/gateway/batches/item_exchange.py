"""One line of a batch as a request: the handlers answer it as they would answer a client."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from firelane.api.errors import envelope
from firelane.api.stored.batches import InputLine
from firelane.gateway.http.exchange import EVENT_STREAM, JSON, ErrorForm, Request
from firelane.gateway.tenants.tenant import Tenant

_RETRY_AFTER = re.compile(rb"retry-after: (\d{1,6})\r\n", re.ASCII)


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """retry_after_s: what the answer asks for, 0: nothing."""

    status: int
    body: bytes
    retry_after_s: int


class ItemExchange:
    """An Exchange that keeps the answer. `on_answer` is called once, with it, unless the line was dropped."""

    def __init__(self, line: InputLine, tenant: Tenant, on_answer: Callable[[ItemAnswer], None]) -> None:
        request = self.request = Request()
        request.method, request.path = b"POST", line.url.encode()
        request.headers = {b"content-type": JSON}
        request.body = bytes(line.body)
        request.tenant = tenant
        request.background = True
        self.id = f"req-{secrets.token_hex(12)}"
        self.extra_headers = b""
        self.started = self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.error_form: ErrorForm | None = None
        self._on_answer = on_answer

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: bytes = b"") -> None:  # noqa: ARG002
        if self.gone:
            return
        self.started = self.gone = True
        self.on_gone = None
        found = _RETRY_AFTER.search(headers + self.extra_headers)
        self._on_answer(ItemAnswer(status, body, int(found[1]) if found else 0))

    def start_stream(self, content_type: bytes = EVENT_STREAM) -> None:  # noqa: ARG002
        self.started = True

    def send(self, data: bytes) -> None:
        """A stream has no place in a file of answers; `end` says so."""

    async def drained(self) -> None:
        pass

    def end(self) -> None:
        self.respond(400, envelope(400, "a batch's answers come in one piece: leave `stream` out"))

    def abort(self) -> None:
        self.respond(500, envelope(500, "internal error: see the server's log", code="internal_error"))

    def discard(self) -> None:
        """No answer is wanted any more."""
        self.gone = True
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()
