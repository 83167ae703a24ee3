"""OpenAI's error envelope as Workers AI's."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from firelane.api import workers_ai as api
from firelane.api.errors import ErrorBody, ErrorEnvelope
from firelane.gateway.exchange import EVENT_STREAM, JSON, Exchange, Request
from firelane.gateway.forms import encode_json

_ENVELOPES: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)
_BY_CODE = {
    "model_not_found": (400, api.NO_SUCH_MODEL),
    "queue_full": (429, api.OUT_OF_CAPACITY),
}
_BY_STATUS = {
    401: api.AUTHENTICATION_ERROR,
    403: api.NOT_ALLOWED,
    405: api.LORA_UNSUPPORTED,
    413: api.REQUEST_TOO_LARGE,
    429: api.OUT_OF_QUOTA,
    500: api.SERVER_ERROR,
    503: api.SERVER_ERROR,
}


def failure(status: int, body: bytes) -> tuple[int, bytes]:
    """Status and body of Workers AI's answer; body: an ErrorEnvelope."""
    error = _ENVELOPES.decode(body).error
    status, code = _BY_CODE.get(str(error.code), (status, _BY_STATUS.get(status, api.INVALID_INPUT)))
    return status, encode_json(api.RunFailure(errors=[_body(error, code)]))


def _body(error: ErrorBody, code: int) -> api.RunErrorBody:
    return api.RunErrorBody(code=code, message=f"AiError: {error.message}")


class WorkersExchange:
    """An exchange whose errors have Workers AI's form."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Exchange) -> None:
        self._inner = inner

    @property
    def request(self) -> Request:
        return self._inner.request

    @request.setter
    def request(self, value: Request) -> None:
        self._inner.request = value

    @property
    def id(self) -> str:
        return self._inner.id

    @id.setter
    def id(self, value: str) -> None:
        self._inner.id = value

    @property
    def started(self) -> bool:
        return self._inner.started

    @started.setter
    def started(self, value: bool) -> None:
        self._inner.started = value

    @property
    def gone(self) -> bool:
        return self._inner.gone

    @gone.setter
    def gone(self, value: bool) -> None:
        self._inner.gone = value

    @property
    def on_gone(self) -> Callable[[], None] | None:
        return self._inner.on_gone

    @on_gone.setter
    def on_gone(self, value: Callable[[], None] | None) -> None:
        self._inner.on_gone = value

    @property
    def extra_headers(self) -> bytes:
        return self._inner.extra_headers

    @extra_headers.setter
    def extra_headers(self, value: bytes) -> None:
        self._inner.extra_headers = value

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: bytes = b"") -> None:
        if status >= 400:
            status, body = failure(status, body)
        self._inner.respond(status, body, content_type=content_type, headers=headers)

    def start_stream(self, content_type: bytes = EVENT_STREAM) -> None:
        self._inner.start_stream(content_type)

    def send(self, data: bytes) -> None:
        self._inner.send(data)

    async def drained(self) -> None:
        await self._inner.drained()

    def end(self) -> None:
        self._inner.end()

    def cut(self) -> None:
        self._inner.cut()
