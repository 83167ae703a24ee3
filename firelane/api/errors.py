"""The error envelope of the OpenAI API: {"error": {message, type, param, code}}."""

from __future__ import annotations

import msgspec

from firelane.errors import EngineDeadError, ProcessDeadError, RequestError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    411: "length_required",
    413: "request_too_large",
    415: "unsupported_media_type",
    417: "expectation_failed",
    429: "rate_limit_exceeded",
    431: "headers_too_large",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    505: "unsupported_http_version",
}
"""The word for programs, where the error has none of its own."""


MAX_MESSAGE = 900
"""Characters: what a client sent is repeated no further."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """`type` groups errors by what the client can do, `param` names the field at fault, `code` is for
    programs.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    error: ErrorBody


def envelope(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON body of an error response with HTTP status `status`. The message becomes one line: it may
    repeat what a client sent."""
    kind = _TYPES.get(status, "invalid_request_error")
    body = ErrorBody(
        message=" ".join(message[:MAX_MESSAGE].splitlines()),
        type=kind,
        param=param,
        code=code if code is not None else _CODES.get(status, kind),
    )
    return msgspec.json.encode(ErrorEnvelope(body))


def describe(error: Exception) -> tuple[int, bytes]:
    """HTTP status and envelope for an error. Anything unforeseen is a 500 that tells the client no
    internals.
    """
    if isinstance(error, RequestError):
        return error.status, envelope(error.status, str(error), param=error.param, code=error.code)
    if isinstance(error, ProcessDeadError):
        code = "engine_unavailable" if isinstance(error, EngineDeadError) else "process_lost"
        return error.status, envelope(error.status, str(error), code=code)
    return 500, envelope(500, "internal error: see the server's log", code="internal_error")
