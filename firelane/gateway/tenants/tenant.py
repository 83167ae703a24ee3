"""Tenants: the identities that requests are made under."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

OPEN_NAME = "open"
"""Name in metrics and logs of clients of a server that wants no keys."""
UNKNOWN_NAME = "unknown"
"""The same of those who gave no known key."""
OTHERS_NAME = "others"
"""Name in metrics of all tenants beyond those that they tell apart."""
RESERVED = frozenset({OPEN_NAME, UNKNOWN_NAME, OTHERS_NAME})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """name: as metrics and logs show it, "" on an open server. salt: starts the hash chains of its KV blocks,
    which no other tenant shares. weight: its share under contention, relative to other tenants'.

    requests_per_minute, tokens_per_minute, max_concurrent: None is no limit. models: the names that it may
    ask for, None: all. admin: may read /metrics and the like.
    """

    name: str = ""
    salt: bytes = b""
    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    models: frozenset[str] | None = None
    admin: bool = False

    @property
    def label(self) -> str:
        """Its name in metrics and logs."""
        return self.name or OPEN_NAME

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


ANONYMOUS_ADMIN = Tenant(admin=True)
"""The tenant of requests without a key on a server that wants none."""
UNAUTHENTICATED = Tenant(name=UNKNOWN_NAME)
"""The tenant of requests that are not authenticated."""


def salt_of(identity: bytes) -> bytes:
    """A salt [16 bytes] that only this tenant has."""
    return hashlib.blake2b(identity, digest_size=16, person=b"firelane.tenant").digest()
