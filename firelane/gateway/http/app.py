"""Dispatch: finds the route of a request and its tenant, runs the handler, and answers errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from firelane.api.errors import describe, envelope
from firelane.errors import AccessError, EngineDeadError, RequestError
from firelane.gateway.http.exchange import Exchange, retry_header
from firelane.gateway.http.routes import Route, RouteTable
from firelane.gateway.requests.metrics import ServerMetrics
from firelane.gateway.requests.usage_log import UsageLog
from firelane.gateway.tenants.registry import Tenants

log = logging.getLogger(__name__)
PREFLIGHT = (
    b"access-control-allow-methods: GET, HEAD, POST, DELETE, OPTIONS\r\n"
    b"access-control-allow-headers: authorization, content-type, *\r\n"  # * alone leaves authorization out
    b"access-control-max-age: 600\r\n"
)
"""Answer to the preflight request of a browser before a page of another origin may send a request (Fetch
Standard, 3.2).
"""

CHALLENGE = b"www-authenticate: Bearer\r\n"


class App:
    """Answers exchanges."""

    def __init__(
        self, tenants: Tenants, usage: UsageLog, metrics: ServerMetrics, routes: Iterable[Route]
    ) -> None:
        self._tenants = tenants
        self._usage = usage
        self._metrics = metrics
        self._table = RouteTable(routes)
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, exchange: Exchange) -> None:
        """Answer, or start to. Never raises."""
        route = self._route(exchange)
        if route is not None:
            self._run(route, exchange)

    def dispatch(self, exchange: Exchange) -> None:
        """`handle` for a request that the server makes by itself, for `exchange.request.tenant`."""
        route = self._route(exchange)
        if route is not None:
            self._perform(route, exchange)

    def _route(self, exchange: Exchange) -> Route | None:
        """None: it has been answered."""
        request = exchange.request
        found = self._table.find(request.path)
        if found is None:
            path = request.path[:200].decode("ascii", "replace")
            self._reply(exchange, 404, envelope(404, f"no such path: {path}", code="unknown_path"))
            return None
        if request.method == b"OPTIONS":
            self._reply(exchange, 200, b"", PREFLIGHT)
            return None
        route = found.route(request.method)
        if route is None:
            allowed = found.allowed
            body = envelope(405, f"use {allowed.decode()} on this path", code="method_not_allowed")
            self._reply(exchange, 405, body, b"allow: %b\r\n" % allowed)
            return None
        request.params = found.params
        return route

    def _run(self, route: Route, exchange: Exchange) -> None:
        if route.wrap is not None:
            exchange = route.wrap(exchange)
        try:
            if not route.public:
                self._admit(route, exchange)
        except Exception as error:
            self.fail(exchange, error)
            return
        self._perform(route, exchange)

    def _perform(self, route: Route, exchange: Exchange) -> None:
        try:
            work = route.handle(exchange)
        except Exception as error:
            self.fail(exchange, error)
            return
        if work is not None:
            self.spawn(self._guarded(exchange, work))

    def _admit(self, route: Route, exchange: Exchange) -> None:
        """Hop 2's first part: who asks. Raises AuthenticationError and AccessError."""
        tenant = exchange.request.tenant = self._tenants.identify(exchange.request.headers)
        if route.admin and not tenant.admin:
            raise AccessError("this path needs the key of a tenant with `admin = true`")

    async def _guarded(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.fail(exchange, error)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which must not raise, until it ends or the server does."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, exchange: Exchange, error: Exception) -> None:
        """Answer an error: as a status, or by cutting off what has begun."""
        if not isinstance(error, RequestError | EngineDeadError):
            log.error("unexpected_error path=%s", exchange.request.path, exc_info=error)
        if exchange.gone:
            return
        if exchange.started:
            exchange.abort()
            return
        status, body = describe(error)
        code = getattr(error, "code", None)
        self._usage.refused(exchange, status, str(code or type(error).__name__))
        headers = retry_header(error) + (CHALLENGE if status == 401 else b"")
        self._reply(exchange, status, body, headers)

    def _reply(self, exchange: Exchange, status: int, body: bytes, headers: bytes = b"") -> None:
        self._metrics.responded(status)
        exchange.respond(status, body, headers=headers)

    async def cancel_tasks(self) -> None:
        """End what has not reached the engine yet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
