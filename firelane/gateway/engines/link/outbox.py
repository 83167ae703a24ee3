"""Requests and aborts on their way to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firelane.wire.frames import Abort, NewRequest, ToEngine
from firelane.wire.submissions import submissions


class Outbox:
    """Owned by its link. send: a frame to the engine, or nowhere while there is no connection."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._new: list[NewRequest] = []
        self._aborts: list[int] = []
        self._is_scheduled = False

    def submit(self, request: NewRequest) -> None:
        if request.id in self._aborts:  # of its time here before: the engine must see that first
            self.flush()
        self._new.append(request)
        self._schedule()

    def abort(self, request_id: int) -> None:
        self._aborts.append(request_id)
        self._schedule()

    def clear(self) -> None:
        """Drop all that has not been sent yet."""
        self._new.clear()
        self._aborts.clear()

    def flush(self) -> None:
        """Send what there is now."""
        self._is_scheduled = False
        new, self._new = self._new, []
        aborts, self._aborts = self._aborts, []
        for submission in submissions(new):
            self._send(submission)
        if aborts:
            self._send(Abort(aborts))

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
