"""The sizes of an admission controller under test, and exchanges that ask it for room."""

from __future__ import annotations

from firelane.gateway.http.exchange import Request
from firelane.gateway.tenants.tenant import Tenant

SEATS, QUEUE = 8, 40


class Exchange:
    extra_headers = b""

    def __init__(self, tenant: str, background: bool = False) -> None:
        self.request = Request()
        self.request.tenant = Tenant(name=tenant)
        self.request.background = background
