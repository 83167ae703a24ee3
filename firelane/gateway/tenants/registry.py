"""Requests to tenants."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from firelane.errors import AuthenticationError, UsageError
from firelane.gateway.tenants.counts import Counts, LocalCounts
from firelane.gateway.tenants.keyfile import read_key_file
from firelane.gateway.tenants.tenant import ANONYMOUS_ADMIN, UNLIMITED, Quota, Tenant, TenantQuota, salt_of

log = logging.getLogger(__name__)


class NoAuth:
    """No key is needed. Who sends one still has cached prefixes of his own."""

    def identify(self, headers: dict[bytes, bytes]) -> Tenant:
        key = key_of(headers)
        return Tenant(salt=salt_of(key), admin=True) if key else ANONYMOUS_ADMIN

    def named(self, name: str) -> Tenant | None:
        return None if name else ANONYMOUS_ADMIN

    def names(self) -> list[str]:
        """Names of all tenants."""
        return [ANONYMOUS_ADMIN.name]

    def quota(self, tenant: Tenant) -> TenantQuota:  # noqa: ARG002
        return UNLIMITED

    def reload(self) -> None:
        pass


class ApiKeyAuth:
    """Authentication by the keys of a file. Quotas belong to names and live as long as the server."""

    def __init__(self, path: Path, now_s: Callable[[], float], counts: Counts | None = None) -> None:
        """counts: shared with other processes. Raises UsageError on a file that cannot be used."""
        self._counts = counts or LocalCounts()
        self._path = path
        self._now_s = now_s
        self._ring = read_key_file(path)
        self._quotas: dict[str, Quota] = {}

    def identify(self, headers: dict[bytes, bytes]) -> Tenant:
        """The tenant of a request. Raises AuthenticationError."""
        key = key_of(headers)
        if not key:
            raise AuthenticationError(
                "no API key: send the header Authorization: Bearer KEY, or x-api-key: KEY"
            )
        tenant = self._ring.find(key)
        if tenant is None:
            raise AuthenticationError("incorrect API key: the server knows no such key")
        return tenant

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name, None where there is none (any more)."""
        return self._ring.tenants.get(name)

    def names(self) -> list[str]:
        """Names of all tenants that the file has."""
        return list(self._ring.tenants)

    def quota(self, tenant: Tenant) -> TenantQuota:
        """The limits of a tenant and what it has used of them."""
        quota = self._quotas.get(tenant.name)
        if quota is None:
            record = self._counts.record(f"tenant {tenant.name}")
            quota = self._quotas[tenant.name] = Quota(tenant, self._now_s, record)
        return quota

    def reload(self) -> None:
        """Read the file again. Never raises."""
        try:
            self._ring = read_key_file(self._path)
        except UsageError as error:
            log.error("keys_not_reloaded the old ones stay: %s", error)
            return
        for name, tenant in self._ring.tenants.items():
            if name in self._quotas:
                self._quotas[name].update(tenant)
        log.info("keys_reloaded tenants=%d", len(self._ring.tenants))


Tenants = NoAuth | ApiKeyAuth
"""Whom a server knows."""


def key_of(headers: dict[bytes, bytes]) -> bytes:
    """The key of an Authorization header (RFC 6750), else of `x-api-key`; b"" where there is none."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    given = key.strip() if scheme.lower() == b"bearer" else b""
    return given or headers.get(b"x-api-key", b"").strip()
