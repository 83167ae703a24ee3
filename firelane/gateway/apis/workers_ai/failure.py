"""OpenAI's error envelope as Workers AI's."""

from __future__ import annotations

import msgspec

from firelane.api.errors import ErrorBody, ErrorEnvelope
from firelane.gateway.apis.workers_ai import types as api
from firelane.gateway.requests.formats import encode_json

_ENVELOPES: msgspec.json.Decoder[ErrorEnvelope] = msgspec.json.Decoder(ErrorEnvelope)
_BY_CODE = {
    "model_not_found": (400, api.NO_SUCH_MODEL),
    "queue_full": (429, api.OUT_OF_CAPACITY),
}
_BY_STATUS = {
    401: api.AUTHENTICATION_ERROR,
    403: api.NOT_ALLOWED,
    405: api.LORA_UNSUPPORTED,
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
