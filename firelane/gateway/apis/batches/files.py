"""/v1/files: upload, list, describe, download, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from firelane.api.stored.files import FileDeleted, FileForm, FileList, FileListQuery, FileObject
from firelane.api.stored.paging import PageCursor, read_query
from firelane.errors import RequestError
from firelane.gateway.files.store import FileStore, TenantFiles
from firelane.gateway.files.upload import Upload, boundary_of
from firelane.gateway.http.exchange import BodySink, Doc, Exchange, Request, Route
from firelane.gateway.requests.metrics import ServerMetrics
from firelane.gateway.services import Replies

PATH = "/v1/files"
CONTENT_TYPE = b"application/octet-stream\r\nx-content-type-options: nosniff"
"""Never the type that the uploader would like: a browser must not run what it gets."""
PIECE_BYTES = 256 << 10
MAX_LIMIT = 10_000


class FileHandler:
    def __init__(self, store: FileStore, replies: Replies, metrics: ServerMetrics) -> None:
        self._store = store
        self._replies = replies
        self._metrics = metrics

    def routes(self) -> Iterable[Route]:
        form = "multipart/form-data"
        upload = Doc(summary="Upload a file", body=FileForm, body_type=form, answer=FileObject)
        listing = Doc(summary="List files", answer=FileList, query=FileListQuery)
        content = Doc(summary="Download a file", answer_type="application/octet-stream")
        yield Route("POST", PATH, self.create, doc=upload, open_body=self.open_body)
        yield Route("GET", PATH, self.list_all, doc=listing)
        one = PATH + "/{id}"
        yield Route("GET", one, self.get, doc=Doc(summary="Describe a file", answer=FileObject))
        yield Route("DELETE", one, self.delete, doc=Doc(summary="Delete a file", answer=FileDeleted))
        yield Route("GET", PATH + "/{id}/content", self.content, doc=content)

    def open_body(self, request: Request) -> BodySink | None:
        """The sink of an upload. None where `create` will refuse it, whatever the body is."""
        boundary = boundary_of(request)
        if boundary is None:
            return None
        try:
            return Upload(
                self._store.tenant_files(request.tenant.name), boundary, self._store.limits.upload_bytes
            )
        except RequestError:
            return None

    async def create(self, exchange: Exchange) -> None:
        sink = exchange.request.sink
        if not isinstance(sink, Upload):
            self._tenant_files(exchange)  # tells why, where files are not kept at all
            raise RequestError("send the file as multipart/form-data, with a boundary", code="invalid_form")
        file = await sink.finish()
        self._replies.json(exchange, file)

    def list_all(self, exchange: Exchange) -> None:
        fields = read_query(exchange.request.query, ("after", "limit", "order", "purpose"))
        page = PageCursor.read(fields, default=MAX_LIMIT, most=MAX_LIMIT)
        purpose = fields.get("purpose")
        files = [f for f in self._tenant_files(exchange).all() if purpose is None or f.purpose == purpose]
        data, more = page.cut(files)
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        self._replies.json(exchange, FileList(data=data, first_id=first, last_id=last, has_more=more))

    def get(self, exchange: Exchange) -> None:
        self._replies.json(exchange, self._tenant_files(exchange).get(exchange.request.params["id"]))

    def delete(self, exchange: Exchange) -> None:
        file_id = exchange.request.params["id"]
        self._tenant_files(exchange).delete(file_id)
        self._replies.json(exchange, FileDeleted(id=file_id))

    async def content(self, exchange: Exchange) -> None:
        path = self._tenant_files(exchange).content(exchange.request.params["id"])
        self._metrics.responded(200)
        if exchange.request.method == b"HEAD":
            exchange.respond(200, b"", content_type=CONTENT_TYPE)
            return
        with path.open("rb") as file:
            exchange.start_stream(CONTENT_TYPE)
            while not exchange.gone and (piece := await asyncio.to_thread(file.read, PIECE_BYTES)):
                exchange.send(piece)
                await exchange.drained()
        exchange.end()

    def _tenant_files(self, exchange: Exchange) -> TenantFiles:
        return self._store.tenant_files(exchange.request.tenant.name)
