"""Routes: the functions that answer paths."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

from firelane.gateway.http.exchange import Route


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
