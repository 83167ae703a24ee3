"""Bodies of requests that the client has compressed (RFC 9110, 8.4)."""

from __future__ import annotations

import zlib

from firelane.errors import RequestError
from firelane.gateway.http.exchange import HttpError, Request

CODINGS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
"""Content codings, and the window bits by which zlib knows their frames."""
ACCEPTED = b"accept-encoding: gzip, deflate\r\n"


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
