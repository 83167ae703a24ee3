"""Dispatch: finds the route of a request and its tenant, runs the handler, answers errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from firelane.api.errors import describe
from firelane.errors import AccessError, AuthenticationError, ProcessDeadError, RequestError
from firelane.gateway.http.exchange import Exchange, HttpError, Request, Route, RouteTable, retry_header
from firelane.gateway.http.origins import OriginPolicy
from firelane.gateway.requests.metrics import ServerMetrics
from firelane.gateway.requests.residence import early_failure
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

PUBLIC_BODY_BYTES = 4 << 10
"""Bytes of a body where no key is needed and none is read."""
CHALLENGE = b"www-authenticate: Bearer\r\n"


class App:
    """Answers exchanges."""

    def __init__(
        self,
        tenants: Tenants,
        usage: UsageLog,
        metrics: ServerMetrics,
        routes: Iterable[Route],
        origins: OriginPolicy,
    ) -> None:
        self._tenants = tenants
        self._usage = usage
        self._metrics = metrics
        self._origins = origins
        self._table = RouteTable(routes)
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, request: Request) -> None:
        """Accept or refuse a request whose head is here: whose page, what for, who asks. Raises
        RequestError."""
        self._origins.check(request)
        route = self._find(request)
        request.route = route
        if route is None or route.public:
            request.body_limit = PUBLIC_BODY_BYTES
            with contextlib.suppress(AuthenticationError):  # who gives no key is told less
                request.tenant = self._tenants.identify(request.headers)
            return
        tenant = request.tenant = self._tenants.identify(request.headers)
        if route.admin and not tenant.admin:
            raise AccessError("this path needs the key of a tenant with `admin = true`")
        if route.open_body is not None:
            request.sink = route.open_body(request)

    def handle(self, exchange: Exchange) -> None:
        """Answer an accepted request, or one with an error, or start to. Never raises."""
        request = exchange.request
        route = request.route
        if route is not None and route.prepare is not None:
            route.prepare(exchange)
        if request.error is not None:
            self.fail(exchange, request.error)
        elif route is None:
            self._reply(exchange, 200, b"", PREFLIGHT)
        else:
            self._perform(route, exchange)

    def dispatch(self, exchange: Exchange) -> None:
        """Answer a request that the server makes by itself, for `exchange.request.tenant`."""
        try:
            route = exchange.request.route = self._find(exchange.request)
        except RequestError as error:
            self.fail(exchange, error)
            return
        if route is not None:
            self._perform(route, exchange)

    def _find(self, request: Request) -> Route | None:
        """None for a preflight. Raises HttpError."""
        found = self._table.find(request.path)
        if found is None:
            path = request.path[:200].decode("ascii", "replace")
            raise HttpError(404, f"no such path: {path}", code="unknown_path")
        if request.method == b"OPTIONS":
            return None
        route = found.route(request.method)
        if route is None:
            allowed = found.allowed
            raise HttpError(
                405,
                f"use {allowed.decode()} on this path",
                code="method_not_allowed",
                headers=b"allow: %b\r\n" % allowed,
            )
        request.params = found.params
        return route

    def _perform(self, route: Route, exchange: Exchange) -> None:
        try:
            work = route.handle(exchange)
        except Exception as error:
            self.fail(exchange, error)
            return
        if work is not None:
            self.spawn(self._guarded(exchange, work))

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
        if not isinstance(error, RequestError | ProcessDeadError):
            log.error("unexpected_error path=%s", exchange.request.path, exc_info=error)
        if exchange.gone:
            return
        if exchange.started and not exchange.request.streams_early:
            exchange.abort()
            return
        status, body = describe(error)
        if exchange.request.route is not None:
            code = getattr(error, "code", None)
            self._usage.refused(exchange, status, str(code or type(error).__name__))
        headers = retry_header(error) + (CHALLENGE if status == 401 else b"")
        if isinstance(error, HttpError):
            headers += error.headers
        if exchange.started:
            exchange.send(early_failure(exchange, status, body))
            exchange.end()
            return
        self._reply(exchange, status, body, headers)

    def _reply(self, exchange: Exchange, status: int, body: bytes, headers: bytes = b"") -> None:
        self._metrics.responded(status)
        exchange.respond(status, body, headers=headers)

    async def cancel_tasks(self) -> None:
        """End what has not reached the engine yet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
