"""Bodies of requests, read without holding up other clients."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from firelane.api.decode import BodyDecoder
from firelane.errors import TooLargeError
from firelane.gateway.http.content_coding import decoded_body, is_coded
from firelane.gateway.http.exchange import Exchange, HttpError
from firelane.gateway.ignored import IgnoredFields
from firelane.gateway.trimming import Trimmer

LARGE_BYTES = 128 << 10
"""Bodies above are decoded and checked on a thread, one at a time."""
QUEUED_BYTES = 256 << 20
"""Bytes of large bodies that wait for their turn, at most."""
MOST_BYTES = 32 << 20
COUNTED_BYTES = 1 << 18
MOST_VALUES = 1 << 19
"""In one body: the work that decoding is, which holds all threads, and its memory."""
NUMBERS_FOR_ONE = 2
"""Numbers in lists that weigh as much as another value: a prompt may be token ids."""


class CheckedBody(Protocol):
    """A decoded body."""

    def check(self) -> None:
        """Raises RequestError on values that are valid alone but not together, or not supported."""
        ...


CheckedT = TypeVar("CheckedT", bound=CheckedBody)


class Bodies:
    """Reads the bodies of one server's requests. refuse_unknown: fields that no type knows are refused, else
    they are ignored. most_bytes: of one that was compressed. queued_bytes: of large ones that wait for their
    turn.
    """

    def __init__(self, *, refuse_unknown: bool = False, most_bytes: int = MOST_BYTES) -> None:
        self.queued_bytes = 0
        self.ignored = IgnoredFields()
        self.trimmer = Trimmer()
        self._refuse_unknown = refuse_unknown
        self._most_bytes = most_bytes
        self._turn = asyncio.Lock()

    async def read(self, exchange: Exchange, decoder: BodyDecoder[CheckedT]) -> CheckedT:
        """The body, decoded and checked; it is not kept. Raises RequestError."""
        request, names = await self._read(exchange, decoder)
        names += decoder.given_hints(request)
        if names:
            self.ignored.note(exchange, names)
        return request

    async def _read(self, exchange: Exchange, decoder: BodyDecoder[CheckedT]) -> tuple[CheckedT, list[str]]:
        request = exchange.request
        body, request.body = request.body, b""
        strict = self._refuse_unknown
        if is_coded(request):
            async with self._turn:
                body = await asyncio.to_thread(decoded_body, request, body, self._most_bytes)
        if len(body) <= LARGE_BYTES:
            return _decode(decoder, body, strict)
        if self.queued_bytes + len(body) > QUEUED_BYTES:
            raise HttpError(503, "too many large bodies wait: try again later", retry_after_s=1)
        self.queued_bytes += len(body)
        try:
            async with self._turn:
                return await asyncio.to_thread(_decode_large, decoder, body, strict)
        finally:
            self.queued_bytes -= len(body)
            self.trimmer.large_body()


def _decode_large(
    decoder: BodyDecoder[CheckedT], body: bytes | bytearray, strict: bool
) -> tuple[CheckedT, list[str]]:
    weight = 0
    for start in range(0, len(body), COUNTED_BYTES):
        weight += _weight(body[start : start + COUNTED_BYTES])
        if weight > NUMBERS_FOR_ONE * MOST_VALUES:
            raise TooLargeError(
                f"the body has more than {MOST_VALUES} values, where {NUMBERS_FOR_ONE} numbers in lists "
                "count as one: send several requests",
                code="too_many_values",
            )
    request, names = decoder.decode_large(body, strict=strict)
    request.check()
    return request, names


def _weight(part: bytes | bytearray) -> int:
    """Numbers that the values of a part of a body weigh as much as: by opening brackets, colons, and commas,
    those before a text apart.
    """
    heavy = sum(map(part.count, (b"[", b"{", b":", b',"', b', "')))
    return NUMBERS_FOR_ONE * heavy + part.count(b",")


def _decode(
    decoder: BodyDecoder[CheckedT], body: bytes | bytearray, strict: bool
) -> tuple[CheckedT, list[str]]:
    """With the names of the fields that were left out of it."""
    request, names = decoder.decode_given(body, strict=strict)
    request.check()
    return request, names
