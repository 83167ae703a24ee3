"""The body of an upload, multipart/form-data (RFC 7578), on its way to the drive."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from firelane.api.stored.files import FileObject, check_expires, check_purpose, plain_name
from firelane.errors import RequestError
from firelane.gateway.files.store import PendingFile, TenantFiles
from firelane.gateway.http.exchange import Request

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what is wrong with a form goes to its sender
MAX_PARTS = 16
MAX_HEADER_BYTES = 8 << 10
"""Bytes of the headers of all parts together, at most."""
MAX_FIELD_BYTES = 4 << 10
FIELDS = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")
FORM_BYTES = 64 << 10
"""Bytes that the form may add to the file: boundaries, part headers, other fields."""


def boundary_of(request: Request) -> bytes | None:
    """The boundary of a request whose body is a form with files."""
    kind, options = parse_options_header(request.headers.get(b"content-type"))
    return options.get(b"boundary") or None if kind == b"multipart/form-data" else None


class Upload:
    """A BodySink. The first error ends the work; the rest of the body is passed over, and `finish` raises
    the error.
    """

    def __init__(self, tenant_files: TenantFiles, boundary: bytes, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes + FORM_BYTES
        self._tenant_files = tenant_files
        self._file_limit_bytes = limit_bytes
        self._error: RequestError | None = None
        self._file: PendingFile | None = None
        self._file_name = ""
        self._fields: dict[str, bytearray] = {}
        self._part: str | None = None
        self._parts = self._header_bytes = 0
        self._ended = False
        self._header_name = self._header_value = b""
        self._disposition = b""
        try:
            self._parser = MultipartParser(boundary, self._callbacks())
        except FormParserError as error:
            self._error = _malformed(error)

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": self._take_header_name,
            "on_header_value": self._take_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_data,
            "on_part_data": self._take_data,
            "on_end": self._end,
        }

    def write(self, data: bytes) -> asyncio.Future[None] | None:
        if self._error is not None:
            return None
        try:
            self._parser.write(data)
        except FormParserError as error:
            self._fail(_malformed(error))
        except RequestError as error:
            self._fail(error)
        return None if self._file is None else self._file.writing

    def _fail(self, error: RequestError) -> None:
        self._error = error
        self.abandon()

    def abandon(self) -> None:
        if self._file is not None:
            self._file.discard()

    # Called by the parser, within write.

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise RequestError(f"the form has more than {MAX_PARTS} fields: leave some out")
        self._disposition = b""
        self._part = None

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += self._header_piece(data[start:end])

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += self._header_piece(data[start:end])

    def _header_piece(self, piece: bytes) -> bytes:
        self._header_bytes += len(piece)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise RequestError(f"the headers of the form's fields are over {MAX_HEADER_BYTES} bytes")
        return piece

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _begin_data(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name not in FIELDS:
            raise RequestError(
                f"unknown form field {name[:80]!r}: known are {', '.join(FIELDS)}",
                param=name[:80] or None,
                code="unknown_parameter",
            )
        if name in self._fields or (name == "file" and self._file is not None):
            raise RequestError(f"the form has two fields `{name}`: send one", param=name)
        self._part = name
        if name == "file":
            if b"filename" not in options:
                raise RequestError("`file` is a text: send a file, with its name", param="file")
            self._file_name = options[b"filename"].decode("utf-8", "replace")
            self._file = self._tenant_files.begin()
        else:
            self._fields[name] = bytearray()

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == "file":
            assert self._file is not None
            if self._file.size_bytes + end - start > self._file_limit_bytes:
                raise RequestError(f"`file` is over {self._file_limit_bytes} bytes", param="file")
            self._file.write(data[start:end])
        elif self._part is not None:
            field = self._fields[self._part]
            field += data[start:end]
            if len(field) > MAX_FIELD_BYTES:
                raise RequestError(f"`{self._part}` is over {MAX_FIELD_BYTES} bytes", param=self._part)

    def _end(self) -> None:
        self._ended = True

    # Called by whoever handles the request.

    async def finish(self) -> FileObject:
        """The stored file. Raises what was wrong with the form, and StorageError."""
        try:
            return await self._finish()
        finally:
            self.abandon()

    async def _finish(self) -> FileObject:
        if self._error is not None:
            raise self._error
        if not self._ended:
            raise RequestError("the form ends too early: its last boundary is missing", code="invalid_form")
        purpose, expires_s = check_purpose(self._field("purpose")), self._expires_s()
        pending, tenant_files = self._file, self._tenant_files
        if pending is None:
            raise RequestError("`file` is missing: send it as a form field", param="file")
        if not pending.size_bytes:
            raise RequestError("`file` is empty", param="file")
        await pending.sync()
        file = tenant_files.describe(
            size_bytes=pending.size_bytes,
            name=plain_name(self._file_name),
            purpose=purpose,
            expires_s=expires_s,
        )
        await asyncio.to_thread(functools.partial(tenant_files.publish, pending.path, file))
        pending.discard()
        tenant_files.show(file)
        return file

    def _field(self, name: str) -> str | None:
        value = self._fields.get(name)
        return None if value is None else value.decode("utf-8", "replace")

    def _expires_s(self) -> int | None:
        anchor, seconds = self._field("expires_after[anchor]"), self._field("expires_after[seconds]")
        if anchor is None and seconds is None:
            return None
        if anchor != "created_at":
            raise RequestError("`expires_after[anchor]` must be created_at", param="expires_after[anchor]")
        if seconds is None or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 10):
            raise RequestError(
                "`expires_after[seconds]` must be a whole number", param="expires_after[seconds]"
            )
        return check_expires(int(seconds), "expires_after[seconds]")


def _malformed(error: Exception) -> RequestError:
    return RequestError(f"the body is not valid multipart/form-data: {error}", code="invalid_form")
