"""Streams of completions and messages that clients come back to. Those of chats are read where stored answers
are (apis/chat/stored.py).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace

from firelane.api.stored.streams import StreamDeleted
from firelane.errors import RequestError
from firelane.gateway.apis.messages.answer import MessagesError, answer_as_anthropic
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.services import Replies
from firelane.gateway.streams.kept_streams import KeptStreams
from firelane.gateway.streams.stream_query import StreamQuery, stream_query

EVENTS = "text/event-stream"


class KeptStreamHandler:
    def __init__(self, streams: KeptStreams, replies: Replies) -> None:
        self._streams = streams
        self._replies = replies

    def routes(self) -> Iterable[Route]:
        yield from _StreamPath(self._streams, self._replies, "cmpl-").routes("/v1/completions/{stream_id}")
        of_messages = _StreamPath(self._streams, self._replies, "msg_")
        yield from of_messages.routes("/v1/messages/{stream_id}", MessagesError, answer_as_anthropic)


@dataclass(frozen=True, slots=True)
class _StreamPath:
    """One API's streams, whose ids begin with `prefix`."""

    streams: KeptStreams
    replies: Replies
    prefix: str

    def routes(
        self, path: str, errors: type | None = None, prepare: Callable[[Exchange], None] | None = None
    ) -> Iterable[Route]:
        reading = Doc(summary="Read on in a stream", query=StreamQuery, answer_type=EVENTS)
        deleting = Doc(summary="End a stream, and forget it", answer=StreamDeleted)
        if errors is not None:
            reading, deleting = (replace(doc, errors=errors) for doc in (reading, deleting))
        yield Route("GET", path, self.read, doc=reading, prepare=prepare)
        yield Route("DELETE", path, self.delete, doc=deleting, prepare=prepare)

    def read(self, exchange: Exchange) -> Coroutine[None, None, None]:
        query = stream_query(exchange.request)
        if not query.stream:
            raise RequestError("only its stream can be read: ask with `stream=true`", param="stream")
        return self.streams.read(exchange, self._id(exchange), query.after)

    def delete(self, exchange: Exchange) -> None:
        self.streams.forget(exchange, self._id(exchange))
        self.replies.json(exchange, StreamDeleted(id=self._id(exchange)))

    def _id(self, exchange: Exchange) -> str:
        """Raises NotFoundError for another API's."""
        found = exchange.request.params["stream_id"]
        if not found.startswith(self.prefix):
            raise self.streams.not_found(found)
        return found
