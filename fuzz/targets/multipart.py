"""Forms with files: a first line with the content type, then the body. Any cut of the body gives the same
file or the same refusal."""

from __future__ import annotations

import asyncio
import atexit
from pathlib import Path
from typing import Any, cast

from firelane.api.stored.files import FileObject
from firelane.errors import RequestError
from firelane.gateway.files.upload import Upload, boundary_of
from firelane.gateway.http.exchange import Request
from fuzz.pieces import pieces
from fuzz.target import Target

FILE_BYTES = 1 << 10
RUNNER = asyncio.Runner()
atexit.register(RUNNER.close)


class Pending:
    """A file that comes, in memory."""

    path = Path("none")
    writing = None

    def __init__(self) -> None:
        self.content = b""
        self.discarded = False

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def write(self, data: bytes) -> None:
        assert not self.discarded
        self.content += data

    async def sync(self) -> None:
        assert not self.discarded

    def discard(self) -> None:
        self.discarded = True


class Files:
    """A tenant's files, of which none is kept."""

    def __init__(self) -> None:
        self.begun: list[Pending] = []

    def begin(self) -> Pending:
        self.begun.append(Pending())
        return self.begun[-1]

    def describe(self, *, size_bytes: int, name: str, purpose: str, expires_s: int | None) -> FileObject:
        expires_at = None if expires_s is None else expires_s
        return FileObject(
            id="file-1", bytes=size_bytes, created_at=0, filename=name, purpose=purpose, expires_at=expires_at
        )

    def publish(self, path: Path, file: FileObject) -> None:
        pass

    def show(self, file: FileObject) -> None:
        pass


def run(data: bytes) -> None:
    kind, _, body = data.partition(b"\n")
    request = Request("")
    request.headers[b"content-type"] = kind.strip()
    boundary = boundary_of(request)
    if boundary is None:
        return
    whole = RUNNER.run(_stored(boundary, [body]))
    for size in (1, 5):
        assert RUNNER.run(_stored(boundary, pieces(body, size))) == whole, f"pieces of {size} bytes differ"


async def _stored(boundary: bytes, parts: list[bytes]) -> tuple[FileObject | None, bytes, bool]:
    """The file and its content, and whether something is wrong with the form: which fault the library meets
    first depends on the cut."""
    files = Files()
    upload = Upload(cast(Any, files), boundary, FILE_BYTES)
    for part in parts:
        upload.write(part)
    try:
        file = await upload.finish()
    except RequestError:
        assert all(pending.discarded for pending in files.begun)
        return None, b"", True
    return file, files.begun[0].content, False


TARGET = Target(
    run=run,
    words=(
        *(
            b"--b\r\n",
            b"\r\n--b",
            b"--b--\r\n",
            b'Content-Disposition: form-data; name="file"; filename="a"\r\n',
        ),
        *(
            b"multipart/form-data; boundary=b\n",
            b'form-data; name="purpose"\r\n\r\nbatch',
            b"filename*=utf-8''a",
        ),
        *(b'name="expires_after[anchor]"\r\n\r\ncreated_at', b'name="expires_after[seconds]"\r\n\r\n3600'),
    ),
)
