"""Bodies of requests, read without holding up other clients: unpacked (RFC 9110, 8.4), decoded and
checked. Fields that are taken and change nothing are told to the client, and memory is given back after
large ones.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from firelane.api.decode import BodyDecoder
from firelane.api.sampling import AnswerFields
from firelane.errors import RequestError, TooLargeError
from firelane.gateway.http.exchange import Exchange, HttpError, Request
from firelane.gateway.urgency import note_urgency
from firelane.heap import trim_heap

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
CODINGS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
"""Content codings, and the window bits by which zlib knows their frames."""
ACCEPTED = b"accept-encoding: gzip, deflate\r\n"
log = logging.getLogger(__name__)
IGNORED_HEADER = b"x-ignored-fields"
MOST_IGNORED = 16
"""In one header."""
MOST_LOGGED = 1000
_PLAIN = re.compile(r"[\w.\[\]-]{1,64}", re.ASCII)
_LOGGED = re.compile(r"[a-z][a-z0-9_.\[\]]{0,39}")
"""Names as APIs have them: what else a client makes up may be a part of its user's text."""
SOON_S, LATER_S = 1.0, 15.0


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
        began_s = time.monotonic()
        request, names = await self._read(exchange, decoder)
        if isinstance(request, AnswerFields):
            note_urgency(exchange.request, request, began_s)
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


def is_coded(request: Request) -> bool:
    return request.headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity")


def decoded_body(request: Request, body: bytes | bytearray, most: int) -> bytes:
    """The body as it was before the client compressed it. Raises HttpError on a coding that is not known and
    on more than `most` bytes, RequestError on a body that is broken.
    """
    coding = request.headers[b"content-encoding"].strip().lower()
    if coding not in CODINGS:
        name = coding[:40].decode("ascii", "replace")
        raise HttpError(
            415,
            f"the content coding '{name}' is not known: use gzip or deflate, or send the body as it is",
            headers=ACCEPTED,
        )
    stream = zlib.decompressobj(CODINGS[coding])
    try:
        found = stream.decompress(body, most + 1)
    except zlib.error as error:
        raise _broken(coding, str(error)) from None
    if len(found) > most:
        raise HttpError(413, f"the body has more than {most} bytes when it is unpacked: send a smaller one")
    if not stream.eof or stream.unused_data:
        raise _broken(coding, "it is cut off, or something follows it")
    return found


def _broken(coding: bytes, why: str) -> RequestError:
    return RequestError(f"the body is not valid {coding.decode()}: {why[:100]}", code="invalid_body")


class IgnoredFields:
    """Fields that requests to one server had, and that it did not read."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, exchange: Exchange, names: Iterable[str]) -> None:
        """Name them in the answer's head. Clients make names up: odd ones are not repeated."""
        plain = [name for name in dict.fromkeys(names) if _PLAIN.fullmatch(name)][:MOST_IGNORED]
        if not plain:
            return
        exchange.extra_headers += b"%b: %b\r\n" % (IGNORED_HEADER, ", ".join(plain).encode())
        for name in plain:
            if name not in self._logged and len(self._logged) < MOST_LOGGED and _LOGGED.fullmatch(name):
                self._logged.add(name)
                path = exchange.request.path.decode("ascii", "replace")[:200]
                log.info("field_ignored name=%s path=%s (said once)", name, path)


class Trimmer:
    """The trimmer of one server's memory. Many large bodies are followed by few trims: each is SOON_S or
    LATER_S after a body, whatever comes in between."""

    def __init__(self, trim: Callable[[], None] = trim_heap) -> None:
        self._trim = trim
        self._due: dict[float, asyncio.TimerHandle] = {}

    def large_body(self) -> None:
        """One has been worked on."""
        loop = asyncio.get_running_loop()
        for delay_s in (SOON_S, LATER_S):
            if delay_s not in self._due:
                self._due[delay_s] = loop.call_later(delay_s, self._run, delay_s)

    def close(self) -> None:
        """Trim no more; idempotent."""
        for handle in self._due.values():
            handle.cancel()
        self._due.clear()

    def _run(self, delay_s: float) -> None:
        del self._due[delay_s]
        asyncio.get_running_loop().run_in_executor(None, self._trim)
