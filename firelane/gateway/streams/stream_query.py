"""The place from which a reader of a kept stream goes on: its query, or the header that a browser sends."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from firelane.api.stored.paging import read_query
from firelane.errors import RequestError
from firelane.gateway.http.exchange import Request

LAST_EVENT = b"last-event-id"
MOST_NUMBER = 2**31 - 1
_NUMBER = re.compile(rb"\d{1,10}", re.ASCII)


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """stream: as events; needed, but where a header says so. starting_after: the number of the last event
    that the client has.
    """

    stream: bool | None = None
    starting_after: Annotated[int, Meta(ge=0, le=MOST_NUMBER)] | None = None

    @property
    def after(self) -> int | None:
        return self.starting_after


def stream_query(request: Request) -> StreamQuery:
    """The query, with what the headers say: `Last-Event-ID` comes from a client that reconnects, and is newer
    than the query. `stream` is known. Raises RequestError.
    """
    try:
        query = msgspec.convert(
            read_query(request.query, StreamQuery.__struct_fields__), StreamQuery, strict=False
        )
    except msgspec.ValidationError as error:
        raise RequestError(f"the query is wrong: {error}") from None
    last = request.headers.get(LAST_EVENT, b"")
    listens = bool(last) or b"text/event-stream" in request.headers.get(b"accept", b"")
    stream = listens if query.stream is None else query.stream
    if query.starting_after is not None and not stream:
        raise RequestError("`starting_after` is for `stream=true`", param="starting_after")
    after = _number(last) if last and stream else query.starting_after
    return StreamQuery(stream=stream, starting_after=after)


def _number(last: bytes) -> int:
    """Raises RequestError."""
    if _NUMBER.fullmatch(last) is None or int(last) > MOST_NUMBER:
        raise RequestError(
            f"the header Last-Event-ID is '{last[:40].decode('latin-1')}': send the number of an event's "
            "`id:` line",
            param="last-event-id",
        )
    return int(last)
