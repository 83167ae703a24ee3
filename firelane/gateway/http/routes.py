"""Routes: the functions that answer paths."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from firelane.api.errors import ErrorEnvelope
from firelane.gateway.http.exchange import BodySink, Exchange, Request

Handle = Callable[[Exchange], "Coroutine[Any, Any, None] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """Documentation of a route in /openapi.json.

    body, answer: types of the JSON of request and 200 response; None where there is none, or where
    `body_type` or `answer_type`, the media type, is another than JSON. query: a struct whose fields are the
    query's parameters. stream: answers with server-sent events when the body asks for it. errors: type of
    the JSON of an answer that is no success.
    """

    summary: str
    body: Any = None
    answer: Any = None
    query: Any = None
    stream: bool = False
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
    may see all of the server. wrap: what stands between the route and its exchange,
    errors of the dispatch included. open_body: where the body of a request goes, by its head; without it, or
    with None, into memory.
    """

    method: str
    pattern: str
    handle: Handle
    public: bool = False
    admin: bool = False
    doc: Doc | None = None
    wrap: Callable[[Exchange], Exchange] | None = None
    open_body: Callable[[Request], BodySink | None] | None = None


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
