"""Forms of uploads, in any pieces and in any state of damage."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from firelane.errors import RequestError
from firelane.gateway.config import FileLimits
from firelane.gateway.files.store import TenantFiles
from firelane.gateway.files.upload import Upload

QUICK = settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
FORM = (
    b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n%b\r\n--XX--\r\n"
)
PIECES = [b"\r\n", b"--XX", b"--", b"\r", b"\n", b"-", b"X", b"\r\n--X", b"{}", b"\0", b"\xff"]
contents = st.lists(st.sampled_from(PIECES) | st.binary(min_size=1, max_size=20), min_size=1, max_size=30)


def tenant_files(name: str) -> TenantFiles:
    return TenantFiles(Path(name), FileLimits(upload_bytes=1000, tenant_bytes=5000), lambda: 1000.0)


def feed(upload: Upload, body: bytes, cuts: list[int]) -> None:
    begin = 0
    for end in sorted(cut % (len(body) + 1) for cut in cuts):
        upload.write(body[begin:end])
        begin = end
    upload.write(body[begin:])


@QUICK
@given(pieces=contents, cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_any_content_in_any_pieces(pieces: list[bytes], cuts: list[int]) -> None:
    content = b"".join(pieces).replace(b"\r\n--XX", b"\r\n--YY")
    if content.startswith(b"--XX"):  # an empty part: a boundary may follow the headers at once
        content = b"." + content
    with tempfile.TemporaryDirectory() as name:
        kept = tenant_files(name)
        upload = Upload(kept, b"XX", 1000)
        feed(upload, FORM % content, cuts)
        file = asyncio.run(upload.finish())
        assert kept.content(file.id).read_bytes() == content
        assert (file.bytes, file.filename, kept._used_bytes) == (len(content), "a.jsonl", len(content))
        assert len(list(Path(name).iterdir())) == 2


@QUICK
@given(
    damage=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=6), st.integers(0, 9)), max_size=6),
    cuts=st.lists(st.integers(0, 2000), max_size=5),
    end=st.integers(0, 500),
)
def test_any_damage_is_one_error_or_a_file(
    damage: list[tuple[int, bytes, int]], cuts: list[int], end: int
) -> None:
    body = FORM % (b"line\r\n" * 10)
    for at, new, removed in damage:
        body = body[:at] + new + body[at + removed :]
    with tempfile.TemporaryDirectory() as name:
        kept = tenant_files(name)
        upload = Upload(kept, b"XX", 1000)
        feed(upload, body[:end], cuts)
        try:
            files, message = [asyncio.run(upload.finish())], ""
        except RequestError as error:
            files, message = [], str(error)
        assert "\n" not in message
        assert kept.all() == files
        assert len(list(Path(name).iterdir())) == 2 * len(files)
        assert (kept._used_bytes, kept._pending) == (sum(file.bytes for file in files), 0)
