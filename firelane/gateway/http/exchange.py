"""One request, who sent it, its route, and the way to answer it, whoever carries the bytes."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import urllib.parse
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from firelane.api.errors import ErrorEnvelope
from firelane.errors import DeadlineError, ProcessDeadError, RequestError
from firelane.gateway.tenants.tenant import UNAUTHENTICATED, Tenant

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no"
NDJSON = b"application/x-ndjson"
"""One JSON object a line."""
NOBODY = ("", "")
"""The client of a request that came by no connection."""
SITE_BITS = 64
"""Bits of an IPv6 address that name a site: all below are one site's, which may use as many as it likes (RFC
4291, 2.5.4)."""


NO_RETRY = b"x-should-retry: false\r\n"
"""Known to the clients of OpenAI and Anthropic, which else send a request again by themselves."""


def retry_header(error: Exception) -> bytes:
    """The Retry-After line of an error that passes by itself, b"" of one that does not."""
    if isinstance(error, DeadlineError):
        return NO_RETRY
    known = isinstance(error, RequestError | ProcessDeadError)
    wait_s = error.retry_after_s if known else None
    return b"" if wait_s is None else retry_line(wait_s)


def retry_line(wait_s: int) -> bytes:
    return b"retry-after: %d\r\n" % wait_s


class BodySink(Protocol):
    """Takes a request's body as it comes, in place of memory. Whoever handles the request asks it for what
    became of the body.
    """

    limit_bytes: int

    def write(self, data: bytes) -> asyncio.Future[None] | None:
        """The next piece. With a future: the next one may come when it is done. Never raises."""
        ...

    def abandon(self) -> None:
        """Nobody will ask: the client has gone, or the body is over its limit."""
        ...


class HttpError(RequestError):
    """A request that HTTP does not allow, or that this server does not take so. headers: lines of the answer,
    each ended by CRLF.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        headers: bytes = b"",
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.headers = headers
        self.retry_after_s = retry_after_s


class Request:
    """One request. Header names are in lower case; values of a repeated field are joined by commas (RFC 9110,
    5.3). `client`: address and connection, as in `client_of`. `params`: what the route's pattern found in the
    path. `route`, `tenant` and `cors` are known before the body is read; `route` is None for a preflight.
    `body_limit`: bytes of the body, None: the server's. `sink`: where the body went, if not into `body`.
    `error`: the answer, where the head tells it already. `cors`: lines for whatever answers. `background`: to
    be run only where nothing else wants to. `streams_early`: its stream has begun before its model was there.
    `arrived_s`: when the whole of it was here, by the gateway's clock; None: when it is admitted. `priority`:
    lower is served sooner. `due_s`: its deadline by time.monotonic(), infinite where it has none.
    """

    __slots__ = (
        "arrived_s",
        "background",
        "body",
        "body_limit",
        "client",
        "cors",
        "due_s",
        "error",
        "headers",
        "keep_alive",
        "method",
        "params",
        "path",
        "priority",
        "query",
        "route",
        "sink",
        "streams_early",
        "tenant",
        "version",
    )

    def __init__(self, client: tuple[str, str] = NOBODY) -> None:
        self.client = client
        self.method = b""
        self.path = b""
        self.query = b""
        self.headers: dict[bytes, bytes] = {}
        self.params: dict[str, str] = {}
        self.body: bytes | bytearray = b""
        self.body_limit: int | None = None
        self.version = "1.1"
        self.keep_alive = False
        self.error: RequestError | None = None
        self.route: Route | None = None
        self.cors = b""
        self.tenant: Tenant = UNAUTHENTICATED
        self.sink: BodySink | None = None
        self.background = False
        self.arrived_s: float | None = None
        self.streams_early = False
        self.priority = 0
        self.due_s = math.inf


class Exchange(Protocol):
    """`respond` once, or `start_stream`, `send` ..., `end`. Writes after the client has gone are ignored.

    started: a part of the answer is out. gone: complete, or the client has gone. on_gone: called when the
    client goes away before the end. extra_headers: header lines, each ended by CRLF, that go out with
    whatever answers; handlers append to it. id: of the request, in the log and in `x-request-id`. error_form:
    puts what is answered with a status of 400 and more into another API's form.
    """

    request: Request
    id: str
    started: bool
    gone: bool
    on_gone: Callable[[], None] | None
    extra_headers: bytes
    error_form: ErrorForm | None

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """A whole response. `headers`: further header lines, each ended by CRLF."""
        ...

    def start_stream(self, content_type: bytes = EVENT_STREAM) -> None: ...

    def send(self, data: bytes) -> None:
        """One piece of a stream; not empty."""
        ...

    async def drained(self) -> None:
        """Return when the client has taken most of what was sent, or has gone."""
        ...

    def end(self) -> None:
        """The stream is complete."""
        ...

    def abort(self) -> None:
        """Break off: the client must see that the response is not complete."""
        ...


ErrorForm = Callable[[int, bytes], tuple[int, bytes]]
"""Status and error envelope to status and body."""
Handle = Callable[[Exchange], "Coroutine[Any, Any, None] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """Documentation of a route in /openapi.json.

    body, answer: types of the JSON of request and 200 response; None where there is none, or where
    `body_type` or `answer_type`, the media type, is another than JSON. query: a struct whose fields are the
    query's parameters. stream: answers with a stream, of stream_type, when the body asks for it. errors: type
    of the JSON of an answer that is no success.
    """

    summary: str
    body: Any = None
    answer: Any = None
    query: Any = None
    stream: bool = False
    stream_type: str = "text/event-stream"
    body_type: str = "application/json"
    answer_type: str = "application/json"
    errors: Any = ErrorEnvelope
    unready: Any = None
    """Type of the 503 answer where it is not that of other errors."""


@dataclass(frozen=True, slots=True)
class Route:
    """pattern: a path whose segments may be `{name}`, the last one also `{name+}` for all that follows.
    handle: answers at once, or gives a coroutine that ends with the answer, or when the request is with the
    engine. Both may raise. public: needs no key. admin: needs a tenant's that
    may see all of the server. prepare: sees each exchange first, errors of the dispatch included.
    open_body: where the body of a request goes, by its head; without it, or
    with None, into memory. owned: answered by the process that owns the server's state, where there are
    several.
    """

    method: str
    pattern: str
    handle: Handle
    public: bool = False
    admin: bool = False
    doc: Doc | None = None
    prepare: Callable[[Exchange], None] | None = None
    open_body: Callable[[Request], BodySink | None] | None = None
    owned: bool = False


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """routes: by method. params: the path's parts that the pattern names, decoded."""

    routes: dict[bytes, Route]
    params: dict[str, str]

    @property
    def allowed(self) -> bytes:
        """The value of an Allow header."""
        methods = set(self.routes)
        if b"GET" in methods:
            methods.add(b"HEAD")
        return b", ".join(sorted(methods))

    def route(self, method: bytes) -> Route | None:
        route = self.routes.get(method)
        return self.routes.get(b"GET") if route is None and method == b"HEAD" else route


class RouteTable:
    """Fixed paths by one look-up; patterns in the order of their adding."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._fixed: dict[bytes, RouteMatch] = {}
        self._patterns: dict[str, RouteMatch] = {}
        for route in routes:
            self._place(route).routes[route.method.encode()] = route

    def _place(self, route: Route) -> RouteMatch:
        if "{" in route.pattern:
            return self._patterns.setdefault(route.pattern, RouteMatch({}, {}))
        return self._fixed.setdefault(route.pattern.encode(), RouteMatch({}, {}))

    def find(self, path: bytes) -> RouteMatch | None:
        found = self._fixed.get(path)
        if found is not None:
            return found
        parts = path.decode("ascii", "replace").split("/")
        for pattern, candidate in self._patterns.items():
            params = _match(pattern.split("/"), parts)
            if params is not None:
                return RouteMatch(candidate.routes, params)
        return None


def _match(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    if pattern[-1].endswith("+}") and len(parts) > len(pattern):
        parts = [*parts[: len(pattern) - 1], "/".join(parts[len(pattern) - 1 :])]
    if len(parts) != len(pattern):
        return None
    params: dict[str, str] = {}
    for want, have in zip(pattern, parts, strict=True):
        if want.startswith("{"):
            if not have:
                return None
            params[want.strip("{}+")] = urllib.parse.unquote(have)
        elif want != have:
            return None
    return params


def client_of(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Address and port of the other end: those of one address are one client, or share a proxy."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple) or len(peer) < 2:
        return NOBODY
    return _site(str(peer[0])), str(peer[1])


def _site(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((parsed, SITE_BITS), strict=False))
