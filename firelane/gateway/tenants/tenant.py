"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """name: as metrics and logs show it, "" on an open server. salt: starts the hash chains of its KV blocks,
    which no other tenant shares. weight: its share under contention, relative to other tenants'.
    """

    name: str = ""
    salt: bytes = b""
    weight: float = 1.0


EVERYBODY = Tenant()
