"""Request bodies to structs; every way in which JSON can be wrong becomes one RequestError that names the
field.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

import msgspec
import msgspec.inspect

from firelane.api.known_fields import drop_unknown
from firelane.errors import RequestError

RequestT = TypeVar("RequestT")
MAX_NAME = 200
"""Characters of a field's name, which the client may have made up, in an error."""
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_FIELD = re.compile(r"field `([^`]*)`")


class BodyDecoder(Generic[RequestT]):
    """Decodes bodies of one type. Built once: the schema is compiled here, not per request. hints: fields
    that are taken and change nothing.
    """

    def __init__(self, request_type: Any, hints: tuple[str, ...] = ()) -> None:
        self._type = request_type
        self._hints = hints
        self._decoder: msgspec.json.Decoder[RequestT] = msgspec.json.Decoder(request_type)

    def given_hints(self, request: RequestT) -> list[str]:
        """Names of the hints that a request gives."""
        return [name for name in self._hints if getattr(request, name) is not None]

    def decode_known(self, body: bytes | bytearray) -> tuple[RequestT, list[str]]:
        """As `decode`, but without the fields that the type does not know, with their names."""
        try:
            return self.decode(body), []
        except RequestError as error:
            if error.code != "unknown_parameter":
                raise
        try:
            value = msgspec.json.decode(body)
            names = list(dict.fromkeys(drop_unknown(msgspec.inspect.type_info(self._type), value)))
            return self.decode(msgspec.json.encode(value)), names
        except RecursionError:
            raise RequestError("the body is nested too deeply", code="invalid_json") from None
        except (msgspec.DecodeError, UnicodeError) as error:
            raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None

    def decode(self, body: bytes | bytearray) -> RequestT:
        """Raises RequestError when `body` is not JSON of this type."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise _invalid(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
        except RecursionError:
            raise RequestError("the body is nested too deeply", code="invalid_json") from None


def _invalid(message: str) -> RequestError:
    path = _PATH.search(message)
    where = path.group(1) if path else ""
    text = message[: path.start()] if path else message
    field = _FIELD.search(text)
    if field:
        where = f"{where}.{field.group(1)}" if where else field.group(1)
    where = where[:MAX_NAME]
    if "unknown field" in text:
        return RequestError(f"unknown field `{where}`: leave it out", param=where, code="unknown_parameter")
    if "missing required field" in text:
        return RequestError(f"`{where}` is missing", param=where, code="missing_parameter")
    spot = f"`{where}`: " if where else "the body: "
    return RequestError(f"{spot}{text[0].lower()}{text[1:]}", param=where or None, code="invalid_value")
