"""The event logs of a server: bounded for each tenant and in all, and kept for some time after their ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from firelane.errors import RateLimitError
from firelane.gateway.streams.event_log import PIECE_BYTES, EventLog
from firelane.gateway.tenants.tenant import Tenant

MAX_BYTES = 64 << 20
LOG_BYTES = 1024
"""Bytes that a log takes besides its events, about."""
_Identity = tuple[str, bytes]
_Place = tuple[_Identity, str]


class _TenantLogs:
    """One tenant's logs by answer; `ended`: those that have ended, in the order of their ends."""

    __slots__ = ("bytes_held", "ended", "logs")

    def __init__(self) -> None:
        self.bytes_held = 0
        self.logs: dict[str, EventLog] = {}
        self.ended: dict[str, None] = {}


class EventLogs:
    """Logs by answer, each tenant's apart. Beyond tenant_bytes of one tenant, or max_bytes of all, the oldest
    that have ended go first, then the oldest events of the longest one. least_bytes: that one which has not
    ended may always hold, so that who reads it as it comes is never cut off for others: where so much is not
    left, no further one begins. keep_s: how long a log is kept after its end.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        tenant_bytes: int = MAX_BYTES,
        keep_s: float = math.inf,
        now_s: Callable[[], float] = time.monotonic,
        least_bytes: int = PIECE_BYTES,
    ) -> None:
        self._least_bytes = least_bytes
        self._max_bytes = max_bytes
        self._tenant_bytes = tenant_bytes
        self._keep_s = keep_s
        self._now_s = now_s
        self._by_tenant: dict[_Identity, _TenantLogs] = {}
        self._places: dict[EventLog, _Place] = {}
        self._ended: dict[_Place, float] = {}  # in the order of their ends
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def bytes_held(self) -> int:
        return self._bytes

    @property
    def readers(self) -> int:
        """Clients that read one of them."""
        return sum(log.readers for log in self._places)

    def begin(self, tenant: Tenant, answer_id: str, *, numbered: bool = False) -> EventLog:
        """A log for a new answer. numbered: as in EventLog. Raises RateLimitError where there is no room."""
        self._check_room(tenant)
        log = EventLog(numbered=numbered)
        held = self._by_tenant.setdefault(tenant.identity, _TenantLogs())
        held.logs[answer_id] = log
        self._places[log] = tenant.identity, answer_id
        self._count(held, LOG_BYTES)
        self._make_room(tenant.identity)
        return log

    def _check_room(self, tenant: Tenant) -> None:
        held = self._by_tenant.get(tenant.identity)
        running = 0 if held is None else len(held.logs) - len(held.ended)
        all_running = len(self._places) - len(self._ended)
        most = max(1, self._tenant_bytes // self._least_bytes)
        most_of_all = max(1, self._max_bytes // self._least_bytes)
        if running >= most or all_running >= most_of_all:
            raise RateLimitError(
                "so many kept streams are being made that there is no memory for one more: try again later, "
                "or ask for one that is not kept"
            )

    def get(self, tenant: Tenant, answer_id: str) -> EventLog | None:
        """None of another tenant's, too."""
        held = self._by_tenant.get(tenant.identity)
        return None if held is None else held.logs.get(answer_id)

    def append(self, log: EventLog, data: bytes) -> None:
        """Nothing where it was forgotten."""
        place = self._places.get(log)
        if place is None:
            return
        before = log.size_bytes
        log.append(data)
        self._count(self._by_tenant[place[0]], log.size_bytes - before)
        self._make_room(place[0])

    def end(self, log: EventLog) -> None:
        """Nothing follows. Nothing where it was forgotten, or has ended."""
        place = self._places.get(log)
        if place is None or log.ended:
            return
        log.end()
        self._by_tenant[place[0]].ended[place[1]] = None
        self._ended[place] = self._now_s()

    def forget(self, tenant: Tenant, answer_id: str) -> None:
        """Nothing where there is none. Who reads it, and is not near its end, is cut off."""
        if self.get(tenant, answer_id) is not None:
            self._forget((tenant.identity, answer_id))

    def sweep(self) -> None:
        """Forget those whose time is over. One that is being read is kept as if it had ended now."""
        now_s = self._now_s()
        while self._ended:
            place, ended_s = next(iter(self._ended.items()))
            if now_s - ended_s <= self._keep_s:
                return
            held = self._by_tenant[place[0]]
            if held.logs[place[1]].readers:
                del self._ended[place], held.ended[place[1]]
                self._ended[place], held.ended[place[1]] = now_s, None
            else:
                self._forget(place)

    def _forget(self, place: _Place) -> None:
        identity, answer_id = place
        held = self._by_tenant[identity]
        log = held.logs.pop(answer_id)
        held.ended.pop(answer_id, None)
        self._ended.pop(place, None)
        del self._places[log]
        self._count(held, -LOG_BYTES - log.size_bytes)
        if not held.logs:
            del self._by_tenant[identity]
        log.give_up()

    def _count(self, held: _TenantLogs, size_bytes: int) -> None:
        held.bytes_held += size_bytes
        self._bytes += size_bytes

    def _make_room(self, identity: _Identity) -> None:
        """identity: the tenant whose logs have grown."""
        held = self._by_tenant[identity]
        while held.bytes_held > self._tenant_bytes:
            if held.ended:
                self._forget((identity, next(iter(held.ended))))
            elif not self._trim(held):
                break
        while self._bytes > self._max_bytes:
            if self._ended:
                self._forget(next(iter(self._ended)))
            elif not self._trim(max(self._by_tenant.values(), key=lambda one: one.bytes_held)):
                break

    def _trim(self, held: _TenantLogs) -> bool:
        """Forget events of the tenant's longest log: one, and as many more as it can spare of a piece. False
        where there are none.
        """
        log = max(held.logs.values(), key=lambda one: one.size_bytes)
        before = log.size_bytes
        if log.first == log.next:
            return False
        log.drop_first()
        while log.size_bytes > max(self._least_bytes, before - PIECE_BYTES):
            log.drop_first()
        self._count(held, log.size_bytes - before)
        return True

    def check_integrity(self) -> None:
        """The counts are those of what is held. For tests."""
        for identity, held in self._by_tenant.items():
            assert held.logs
            assert held.bytes_held == sum(LOG_BYTES + log.size_bytes for log in held.logs.values())
            assert set(held.ended) == {name for name, log in held.logs.items() if log.ended}
            assert all(self._places[log] == (identity, name) for name, log in held.logs.items())
        assert self._bytes == sum(held.bytes_held for held in self._by_tenant.values())
        assert len(self._places) == sum(len(held.logs) for held in self._by_tenant.values())
        ended = [(identity, name) for identity, held in self._by_tenant.items() for name in held.ended]
        assert set(self._ended) == set(ended)
