"""Requests of one connection that have come whole and wait until those before them are answered."""

from __future__ import annotations

from collections import deque

from firelane.gateway.http.connections import ConnectionSet
from firelane.gateway.http.exchange import Request


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
