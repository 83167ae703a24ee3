"""GET / and what it loads: the playground and dashboard of `firelane/gateway/page`.

The files are read once, at the start, into a fixed table of routes: no part of a request ever names a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.resources import files

from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.services import Replies

TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
SECURITY = (
    b"content-security-policy: default-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'; object-src 'none'\r\n"
    b"x-content-type-options: nosniff\r\n"
    b"referrer-policy: no-referrer\r\n"
)
"""Only what this server sent runs, and it talks to this server alone (CSP level 3)."""


class StaticFile:
    """One file of the page. A browser keeps it and asks each time whether it has changed."""

    def __init__(self, replies: Replies, body: bytes, content_type: bytes) -> None:
        self._replies = replies
        self._body = body
        self._type = content_type
        self._tag = b'"%b"' % hashlib.blake2b(body, digest_size=12).hexdigest().encode()
        self._headers = b"etag: %b\r\ncache-control: no-cache\r\n%b" % (self._tag, SECURITY)

    def send(self, exchange: Exchange) -> None:
        """The file, or 304 when the client has it."""
        known = exchange.request.headers.get(b"if-none-match", b"")
        status = 304 if self._tag in known or known == b"*" else 200
        self._replies.send(exchange, self._body, status, content_type=self._type, headers=self._headers)


class PageHandler:
    def __init__(self, replies: Replies) -> None:
        self._replies = replies

    def routes(self) -> Iterable[Route]:
        """`/` is index.html; each file of the page lies below /page/."""
        for file in files("firelane.gateway").joinpath("page").iterdir():
            suffix = file.name[file.name.rfind(".") :]
            if suffix in TYPES:
                served = StaticFile(self._replies, file.read_bytes(), TYPES[suffix])
                doc = Doc(summary="A file of the page", answer_type=TYPES[suffix].decode())
                if file.name == "index.html":
                    yield Route("GET", "/", served.send, public=True, doc=doc)
                else:
                    yield Route("GET", f"/page/{file.name}", served.send, public=True, doc=doc)
