"""Request bodies to structs; every way in which JSON can be wrong becomes one RequestError that names the
field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
import msgspec.inspect

from firelane.api.reading.field_names import FieldNames
from firelane.api.reading.slices import ListField, drop_unknown, list_fields, sliced
from firelane.api.sampling import AnswerFields
from firelane.errors import RequestError

RequestT = TypeVar("RequestT")
MAX_NAME = 200
"""Characters of a field's name, which the client may have made up, in an error."""
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
_FIELD = re.compile(r"field `([^`]*)`")


class BodyDecoder(Generic[RequestT]):
    """Decodes bodies of one type. The schema is compiled for the first request, not for each, and not at the
    start. hints: fields that are taken and change nothing.
    """

    def __init__(self, request_type: Any, hints: tuple[str, ...] = ()) -> None:
        self._type = request_type
        self._hints = hints

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[RequestT]:
        return msgspec.json.Decoder(self._type)

    @cached_property
    def _lists(self) -> Mapping[str, ListField]:
        return list_fields(self._type)

    @cached_property
    def _names(self) -> FieldNames | None:
        return _names_of(self._type)

    @cached_property
    def _kind(self) -> msgspec.inspect.Type:
        return msgspec.inspect.type_info(self._type)

    def given_hints(self, request: RequestT) -> list[str]:
        """Names of the hints that a request gives."""
        return [name for name in self._hints if getattr(request, name) is not None]

    def decode_large(self, body: bytes | bytearray, *, strict: bool) -> tuple[RequestT, list[str]]:
        """Decode like `decode_given`: a long list in parts, between which other threads have their turns."""
        parts = sliced(body, self._lists)
        if parts is not None:
            try:
                items, names = parts.decode(strict=strict)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                parts = None  # the whole body tells where it is wrong
            else:
                request, others = self.decode_given(parts.rest, strict=strict)
                setattr(request, parts.field.name, items)
                return request, list(dict.fromkeys([*others, *names]))
        return self.decode_given(body, strict=strict)

    def decode_given(self, body: bytes | bytearray, *, strict: bool) -> tuple[RequestT, list[str]]:
        """Decode like `decode`, with fields by other servers' names (field_names.py), and, where not strict,
        without those that the type does not know, with their names.
        """
        try:
            return self.decode(body), []
        except RequestError as error:
            if error.code != "unknown_parameter":
                raise
        known, names = self._known_fields(body, strict=strict)
        return self.decode(known), names

    def _known_fields(self, body: bytes | bytearray, *, strict: bool) -> tuple[bytes, list[str]]:
        """A body with the names of the type, and the names of what was left out. A large one lives on in one
        form alone.
        """
        try:
            value = msgspec.json.decode(body)
            if self._names is not None and isinstance(value, dict):
                self._names.translate(value)
            names = () if strict else dict.fromkeys(drop_unknown(self._kind, value))
            return msgspec.json.encode(value), list(names)
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


def _names_of(request_type: Any) -> FieldNames | None:
    """None of a type whose requests do not generate text."""
    if isinstance(request_type, type) and issubclass(request_type, AnswerFields):
        return request_type.field_names()
    return None


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
