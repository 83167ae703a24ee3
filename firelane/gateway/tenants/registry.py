"""Requests to tenants."""

from __future__ import annotations

import hashlib
from typing import Protocol

from firelane.gateway.tenants.tenant import EVERYBODY, Tenant


class Tenants(Protocol):
    """Whom a server knows."""

    def identify(self, headers: dict[bytes, bytes]) -> Tenant:
        """The tenant of a request. Raises AuthenticationError."""
        ...


class OpenServer:
    """No key is needed. Who sends one still has cached prefixes of his own."""

    def identify(self, headers: dict[bytes, bytes]) -> Tenant:
        key = bearer(headers)
        if not key:
            return EVERYBODY
        return Tenant(salt=hashlib.blake2b(key, digest_size=16, person=b"firelane.tenant").digest())


def bearer(headers: dict[bytes, bytes]) -> bytes:
    """The key of an Authorization header, b"" where there is none (RFC 6750)."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""
