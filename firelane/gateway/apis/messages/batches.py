"""/v1/messages/batches: batches of requests in Anthropic's form."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec.structs import replace

from firelane.api.decode import BodyDecoder
from firelane.api.stored.batches import OPEN, Batch, BatchRequest, InputLine, ResultLine
from firelane.api.stored.files import FileObject
from firelane.api.stored.paging import PageCursor, read_query
from firelane.errors import NotFoundError, RequestError
from firelane.gateway.apis.messages.answer import MessagesError, answer_as_anthropic, failure
from firelane.gateway.apis.messages.batch_types import (
    ENDPOINT,
    OURS,
    PATH,
    THEIRS,
    MessageBatch,
    MessageBatchDeleted,
    MessageBatchItem,
    MessageBatchList,
    MessageBatchListQuery,
    MessageBatchRequest,
    MessageBatchResult,
    MessageResult,
    shown,
)
from firelane.gateway.batches.records import BatchRecord
from firelane.gateway.files.store import TenantFiles
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.services import Services

JSON_LINES = b"application/x-jsonl"
WINDOW = "24h"
DEFAULT_LIMIT, MOST_LIMIT = 20, 1000
LINES_AT_ONCE = 64
_RESULTS: msgspec.json.Decoder[ResultLine] = msgspec.json.Decoder(ResultLine)


class MessageBatchHandler:
    def __init__(self, services: Services) -> None:
        self._batches = services.batches
        self._files = services.files
        self._bodies = services.bodies
        self._replies = services.replies
        self._metrics = services.metrics
        self._decoder: BodyDecoder[MessageBatchRequest] = BodyDecoder(MessageBatchRequest)

    def routes(self) -> Iterable[Route]:
        one = PATH + "/{id}"
        form = "(Anthropic's form)"
        listing = Doc(
            summary=f"List batches {form}",
            answer=MessageBatchList,
            query=MessageBatchListQuery,
            errors=MessagesError,
        )
        create = Doc(
            summary=f"Run many requests {form}",
            body=MessageBatchRequest,
            answer=MessageBatch,
            errors=MessagesError,
        )
        get = Doc(summary=f"Describe a batch {form}", answer=MessageBatch, errors=MessagesError)
        cancel = Doc(summary=f"Cancel a batch {form}", answer=MessageBatch, errors=MessagesError)
        delete = Doc(summary=f"Delete a batch {form}", answer=MessageBatchDeleted, errors=MessagesError)
        lines = Doc(
            summary=f"Results of a batch {form}", answer_type=JSON_LINES.decode(), errors=MessagesError
        )
        for method, path, handle, doc in (
            ("POST", PATH, self.create, create),
            ("GET", PATH, self.list_all, listing),
            ("GET", one, self.get, get),
            ("DELETE", one, self.delete, delete),
            ("POST", one + "/cancel", self.cancel, cancel),
            ("GET", one + "/results", self.results, lines),
        ):
            yield Route(method, path, handle, doc=doc, prepare=answer_as_anthropic)

    async def create(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        tenant = exchange.request.tenant.name
        tenant_files = self._files.tenant_files(tenant)
        source = await _stored(tenant_files, request.requests)
        asked = BatchRequest(input_file_id=source.id, endpoint=ENDPOINT, completion_window=WINDOW)
        try:
            batch = await self._batches.create(tenant, asked)
        finally:
            tenant_files.delete(source.id)  # the batch has a copy
        counts = replace(batch.request_counts, total=len(request.requests))
        self._replies.json(exchange, shown(replace(batch, request_counts=counts)))

    def list_all(self, exchange: Exchange) -> None:
        fields = read_query(exchange.request.query, MessageBatchListQuery.__struct_fields__)
        backwards = "before_id" in fields
        limit = PageCursor.read({**fields}, default=DEFAULT_LIMIT, most=MOST_LIMIT).limit
        page = PageCursor(fields.get("before_id", fields.get("after_id")), limit, newest_first=not backwards)
        known = self._batches.records.of(exchange.request.tenant.name)
        data, more = page.cut([shown(batch) for batch in known if batch.endpoint == ENDPOINT])
        if backwards:
            data.reverse()
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        self._replies.json(exchange, MessageBatchList(data=data, has_more=more, first_id=first, last_id=last))

    def get(self, exchange: Exchange) -> None:
        self._replies.json(exchange, shown(self._asked(exchange).batch))

    async def cancel(self, exchange: Exchange) -> None:
        record = self._asked(exchange)
        if record.batch.status in ("finalizing", "cancelling"):  # it ends anyway
            batch: Batch = record.batch
        else:
            batch = await self._batches.cancel(record.tenant, record.id)
        self._replies.json(exchange, shown(batch))

    async def delete(self, exchange: Exchange) -> None:
        record = self._ended(exchange, "cancel it first")
        tenant_files = self._files.tenant_files(record.tenant)
        for file_id in (record.batch.output_file_id, record.batch.error_file_id):
            if file_id is not None and tenant_files.has(file_id):
                tenant_files.delete(file_id)
        await self._batches.records.forget(record)
        self._replies.json(exchange, MessageBatchDeleted(id=shown(record.batch).id))

    async def results(self, exchange: Exchange) -> None:
        batch = self._ended(exchange, "its results come with `results_url`").batch
        tenant_files = self._files.tenant_files(exchange.request.tenant.name)
        ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None]
        paths = [tenant_files.content(file_id) for file_id in ids]
        self._metrics.responded(200)
        if exchange.request.method == b"HEAD":
            exchange.respond(200, b"", content_type=JSON_LINES)
            return
        exchange.start_stream(JSON_LINES)
        for path in paths:
            await _send_results(exchange, path)
        exchange.end()

    def _ended(self, exchange: Exchange, advice: str) -> BatchRecord:
        """Raises RequestError while it runs."""
        record = self._asked(exchange)
        if record.batch.status in OPEN:
            raise RequestError(f"the batch has not ended: {advice}", param="message_batch_id")
        return record

    def _asked(self, exchange: Exchange) -> BatchRecord:
        """Raises NotFoundError, for another tenant's batch and one of another kind, too."""
        name = exchange.request.params["id"]
        own = OURS + name.removeprefix(THEIRS) if name.startswith(THEIRS) else name
        record = self._batches.records.find(exchange.request.tenant.name, own)
        if record is None or record.batch.endpoint != ENDPOINT or not name.startswith(THEIRS):
            raise NotFoundError(
                f"there is no batch {name[:80]!r}", param="message_batch_id", code="batch_not_found"
            )
        return record


async def _stored(tenant_files: TenantFiles, items: Sequence[MessageBatchItem]) -> FileObject:
    """A file of the requests. Raises StorageError and TooLargeError."""
    pending = tenant_files.begin()
    try:
        for start in range(0, len(items), LINES_AT_ONCE):
            pending.write(await asyncio.to_thread(_lines, items[start : start + LINES_AT_ONCE]))
        await pending.sync()
        file = tenant_files.describe(
            size_bytes=pending.size_bytes, name="message_batch.jsonl", purpose="batch", expires_s=None
        )
        await asyncio.to_thread(tenant_files.publish, pending.path, file)
        tenant_files.show(file)
    finally:
        pending.discard()
    return file


def _lines(items: Sequence[MessageBatchItem]) -> bytes:
    """Lines of an input file."""
    made: list[bytes] = []
    for item in items:
        body: Any = msgspec.json.decode(item.params)
        raw = msgspec.Raw(msgspec.json.encode(body))  # without new lines
        line = InputLine(custom_id=item.custom_id, method="POST", url=ENDPOINT, body=raw)
        made.append(msgspec.json.encode(line) + b"\n")
    return b"".join(made)


async def _send_results(exchange: Exchange, path: Path) -> None:
    with path.open("rb") as file:
        while not exchange.gone and (piece := await asyncio.to_thread(_results, file)):
            exchange.send(piece)
            await exchange.drained()


def _results(file: BinaryIO) -> bytes:
    """The next results of a file of answers."""
    found = [_result(_RESULTS.decode(line)) for line in islice(file, LINES_AT_ONCE)]
    return b"".join(msgspec.json.encode(one) + b"\n" for one in found)


def _result(line: ResultLine) -> MessageBatchResult:
    return MessageBatchResult(custom_id=line.custom_id, result=_outcome(line))


def _outcome(line: ResultLine) -> MessageResult:
    answer = line.response
    if answer is None:
        expired = line.error is not None and line.error.code == "batch_expired"
        return MessageResult(type="expired" if expired else "canceled")
    if answer.status_code < 300:
        return MessageResult(type="succeeded", message=answer.body)
    _, body = failure(answer.request_id, answer.status_code, bytes(answer.body))
    return MessageResult(type="errored", error=msgspec.Raw(body))
