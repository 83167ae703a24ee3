"""The head of a request: what HTTP/1.1 demands of it, beyond what the parser checks (RFC 9112, RFC 9110);
and the errors of a connection that refuses what its client sends.
"""

from __future__ import annotations

from firelane.gateway.http.exchange import HttpError, Request

MOST_FIELDS = 128
SINGLE = frozenset(
    (
        *(b"authorization", b"content-encoding", b"content-length", b"content-type", b"expect", b"host"),
        *(b"origin", b"traceparent", b"transfer-encoding", b"upgrade", b"x-request-id"),
    )
)
"""Fields of which a request may have one line."""


def add_field(request: Request, name: bytes, value: bytes) -> None:
    """A further line of the head. Names in lower case. Raises HttpError on a second line of a SINGLE one."""
    headers = request.headers
    if name not in headers:
        headers[name] = value
    elif name in SINGLE:
        raise HttpError(400, f"the header {name.decode()} is given twice: give it once")
    else:
        headers[name] += b", " + value


def check_head(request: Request) -> None:
    """Settle path and query of a complete head. Raises HttpError."""
    if request.version not in ("1.0", "1.1"):
        raise HttpError(505, f"HTTP/{request.version} is not spoken here: use HTTP/1.1")
    if request.method == b"CONNECT":
        raise HttpError(501, "this is no proxy: use GET or POST")
    if request.version == "1.1" and not request.headers.get(b"host"):
        raise HttpError(400, "the header Host is missing")  # RFC 9112, 3.2
    _check_coding(request)
    target = request.path
    if target[:7].lower() == b"http://" or target[:8].lower() == b"https://":
        target = _origin_form(request, target)
    elif target[:1] != b"/" and target != b"*":
        raise HttpError(400, "the request's target is no path")
    request.path, _, request.query = target.partition(b"?")


def _check_coding(request: Request) -> None:
    coding = request.headers.get(b"transfer-encoding")
    if coding is None:
        return
    if request.version == "1.0":
        raise HttpError(400, "HTTP/1.0 has no Transfer-Encoding: send a Content-Length")  # RFC 9112, 6.1
    if coding.strip().lower() != b"chunked":
        raise HttpError(501, "the only transfer coding known here is chunked")


def _origin_form(request: Request, target: bytes) -> bytes:
    """Path and query of an absolute target, whose authority stands for the Host (RFC 9112, 3.2.2)."""
    authority, slash, rest = target.partition(b"://")[2].partition(b"/")
    authority, mark, query = authority.partition(b"?")
    request.headers[b"host"] = authority
    return b"/" + rest if slash and not mark else b"/" + mark + query + slash + rest


def framing(request: Request) -> bytes:
    """A head that says of the body what the request's says."""
    names = [name for name in (b"content-length", b"transfer-encoding") if name in request.headers]
    lines = [b"%b: %b\r\n" % (name, request.headers[name]) for name in names]
    return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines)


def has_body(request: Request) -> bool:
    """Whether bytes follow the head."""
    length = request.headers.get(b"content-length", b"")
    return b"transfer-encoding" in request.headers or length.strip(b"0") != b""


def malformed(reason: Exception) -> HttpError:
    return HttpError(400, f"malformed HTTP request: {reason}")


def late(*, in_head: bool) -> HttpError:
    part = "headers" if in_head else "body"
    return HttpError(408, f"the request's {part} did not arrive in time")


def large_body(limit_bytes: int) -> HttpError:
    return HttpError(413, f"the body is over {limit_bytes} bytes")


def too_many_pipelined(limit: int) -> HttpError:
    return HttpError(429, f"more than {limit} requests wait on one connection")


def large_head(limit_bytes: int) -> HttpError:
    """Trailers count, too."""
    return HttpError(
        431, f"the request's headers and trailers are over {limit_bytes} bytes or {MOST_FIELDS} lines"
    )


def too_many_bodies() -> HttpError:
    message = "too many bodies arrive at the same time: try again later"
    return HttpError(503, message, retry_after_s=1)
