"""Tiers of the KV cache: where pages lie that it has no room for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from firelane.errors import UsageError

KV_ADMISSIONS = ("always", "reuse")
GIB = 1 << 30


class TiersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers of an engine's KV cache. host_bytes: of host memory. disk: the directory of files of disk_bytes;
    disk_key_file: with the secret that they are encrypted by; engines: that share the directory.
    tenant_bytes: the most that one tenant's pages take of a tier; None: all. admission: pages that are
    stored, one of KV_ADMISSIONS: "always" all, "reuse" those that are used a second time."""

    host_bytes: int = 0
    disk: Path | None = None
    disk_bytes: int = 0
    disk_key_file: Path | None = None
    engines: int = 1
    tenant_bytes: int | None = None
    admission: str = "always"

    def __post_init__(self) -> None:
        if self.host_bytes < 0 or self.disk_bytes < (self.disk is not None) or self.engines < 1:
            raise UsageError("sizes of tiers, and the number of engines that have them, are 1 or more")
        if not self.host_bytes and self.disk is None:
            raise UsageError("tiers without host_bytes or disk: say where pages are to lie")
        if self.admission not in KV_ADMISSIONS:
            known = ", ".join(KV_ADMISSIONS)
            raise UsageError(f"admission is {self.admission[:40]!r}: it must be one of {known}")

    @property
    def option(self) -> str:
        """The option that asks for a tier, as it is given."""
        if self.host_bytes:
            return f"--kv-offloading-size {self.host_bytes / GIB:g}"
        return f"--kv-disk {self.disk} --kv-disk-size {self.disk_bytes / GIB:g}"

    def share(self, number: int) -> TiersConfig:
        """Of one of so many engines."""
        tenant = self.tenant_bytes and max(1, self.tenant_bytes // number)
        host, disk = (nbytes and max(1, nbytes // number) for nbytes in (self.host_bytes, self.disk_bytes))
        return msgspec.structs.replace(
            self, host_bytes=host, disk_bytes=disk, tenant_bytes=tenant, engines=number
        )
