"""All open connections of a server: how many there may be, the sweep that closes those that only wait,
and the requests of one that wait for those before them.
"""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable
from typing import Protocol

from firelane.gateway.config import HttpLimits
from firelane.gateway.http.exchange import Exchange, Request

Handler = Callable[[Exchange], None]
"""Answers a request, or begins to. Where `request.error` is set, that is the answer."""
Accept = Callable[[Request], None]
Answered = Callable[[Request, int], None]
"""Looks at a request's head before any of its body is read: who asks, for what, where the body goes. Raises
RequestError where that is the answer already.
"""
MOST_CONNECTIONS = 16384
OWN_FILES = 128
"""Descriptors that connections leave to the rest of the process: model files, the engine, logs, uploads."""
REFUSALS = 64
"""Connections beyond the limit that are told so at the same time; others are cut."""


def connection_limit(asked: int) -> int:
    """Connections that may be open: `asked`, 0: MOST_CONNECTIONS; no more than the process has files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, files - OWN_FILES - REFUSALS)
    return min(asked or MOST_CONNECTIONS, room)


class OpenConnection(Protocol):
    """An open connection, as the set of all sees it."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken yet."""
        ...

    def reject(self, message: str) -> None:
        """Refuse whatever the client is about to ask."""
        ...

    def sweep(self, now_s: float) -> None:
        """Close when a deadline has passed."""
        ...

    def close_if_idle(self) -> None: ...
    def close_when_idle(self, idle_s: float) -> None:
        """No sooner than in `idle_s`, unless a request comes: its answer is the last one."""
        ...

    def abort(self) -> None: ...


class ConnectionSet:
    """The connections, their handler and limits. max_open: see `connection_limit`. held_bytes: of bodies in
    memory that no handler has yet.
    """

    def __init__(
        self,
        handle: Handler,
        limits: HttpLimits,
        now_s: Callable[[], float],
        accept: Accept = lambda _: None,
        max_open: int = MOST_CONNECTIONS,
        answered: Answered = lambda _, __: None,
    ) -> None:
        """answered: hears of each answer's status."""
        self.handle = handle
        self.accept = accept
        self.limits = limits
        self.now_s = now_s
        self.max_open = max_open
        self.answered = answered
        self.closing = False
        self.held_bytes = 0
        self._open: set[OpenConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unsent_bytes(self) -> int:
        return sum(connection.unsent_bytes for connection in self._open)

    def add(self, connection: OpenConnection) -> None:
        """Takes part in the sweep from now on. One too many is told so, far too many are cut."""
        self._open.add(connection)
        if len(self._open) > self.max_open + REFUSALS:
            connection.abort()
        elif len(self._open) > self.max_open:
            connection.reject(f"all {self.max_open} connections are taken: try again later")

    def discard(self, connection: OpenConnection) -> None:
        self._open.discard(connection)

    def sweep(self) -> None:
        now_s = self.now_s()
        for connection in list(self._open):
            connection.sweep(now_s)

    def close_idle(self) -> None:
        """No connection is kept alive from now on."""
        self.closing = True
        for connection in list(self._open):
            connection.close_if_idle()

    def retire(self, idle_s: float) -> None:
        """Answers are the last ones of their connections from now on; those without a request are closed in
        `idle_s`, as clients may be about to send one."""
        self.closing = True
        for connection in list(self._open):
            connection.close_when_idle(idle_s)

    def abort_all(self) -> None:
        for connection in list(self._open):
            connection.abort()


class Pipeline:
    """In the order of arrival. The owner's held_bytes counts bodies in memory that no handler has yet: those
    of the requests here are in it. num_bytes: of these requests, with those taken since it was last empty."""

    def __init__(self, owner: ConnectionSet) -> None:
        self._owner = owner
        self._requests: deque[Request] = deque()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, head_bytes: int) -> None:
        request.arrived_s = self._owner.now_s()
        self._requests.append(request)
        self.num_bytes += head_bytes + len(request.body)

    def take(self) -> Request:
        """The first one, for its handler. There is one."""
        request = self._requests.popleft()
        self._owner.held_bytes -= len(request.body)
        if not self._requests:
            self.num_bytes = 0
        return request

    def forget(self) -> None:
        """Nobody will handle them."""
        while self._requests:
            sink = self.take().sink
            if sink is not None:
                sink.abandon()
