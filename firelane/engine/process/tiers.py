"""Tiers of an engine's KV cache, as its configuration asks for them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from firelane.contract import PageMemory
from firelane.engine.core import EngineCore
from firelane.engine.process.identity import checkpoint_identity
from firelane.engine_config import EngineConfig, TiersConfig
from firelane.errors import UsageError
from firelane.kv.tiers import (
    AdmitReused,
    CachedMemory,
    HostTier,
    PageTier,
    TierAdmission,
    TieredPages,
)
from firelane.kv.tiers.cipher import NoCipher, PageCipher
from firelane.kv.tiers.disk import DiskTier, open_disk
from firelane.kv.tiers.encrypted import Encrypted, read_secret
from firelane.kv.tiers.records import Kind
from firelane.kv.tiers.segment import slot_bytes

REMEMBERED = 4
"""Computed pages of which is known that they were, for each page that a tier has room for."""
log = logging.getLogger(__name__)


class NoTiers:
    """The tiers of an engine whose KV cache is all that it has."""

    def forget(self, tenant: bytes, done: Callable[[int], None]) -> None:
        """Forget nothing, and say so at once."""
        del tenant
        done(0)

    def standby(self) -> None:
        pass

    def close(self) -> None:
        pass


NO_TIERS = NoTiers()


def files_identity(config: EngineConfig) -> str:
    """The identity of the files that a model with tiers is loaded from: pages on a drive outlive a change of
    these, which a sample of their content may not show."""
    return "" if config.tiers is None else checkpoint_identity(config.model_dir, times=True)


def open_tiers(
    config: TiersConfig | None,
    core: EngineCore,
    pages: PageMemory | None,
    states: PageMemory | None,
    identity: str,
) -> TieredPages | NoTiers:
    """From now on the core has its tiers, which the caller closes before the executor is released. pages,
    states: as in Executor. identity: as in wire.Ready, with `files_identity`. A drive that fails leaves its
    tier out. Raises UsageError."""
    if config is None:
        return NO_TIERS
    if pages is None or (core.kv.states.is_kept and states is None):
        raise UsageError(f"{config.option}: the engine does not reach all pages of its ranks; leave it out")
    memory = CachedMemory(pages, len(core.kv.spans), states)
    tiers: list[PageTier] = []
    slots = 0
    if config.host_bytes:
        slots = _slots(config, config.host_bytes, memory.page_bytes)
        tiers.append(HostTier(slots, memory.page_bytes, _tenant_slots(config, memory.page_bytes)))
    disk = _disk(config, config.disk, Kind(identity, memory.layout_id, memory.page_bytes, memory.num_groups))
    if disk is not None:
        tiers.append(disk)
        slots = max(slots, disk.index.num_slots)
    tiered = TieredPages(tiers, memory, core.kv, _admission(config, slots))
    core.have_tiers(tiered)
    return tiered


def _disk(config: TiersConfig, directory: Path | None, kind: Kind) -> DiskTier | None:
    if directory is None:
        return None
    cipher: PageCipher = NoCipher()
    if config.disk_key_file is not None:
        cipher = encrypted = Encrypted(read_secret(config.disk_key_file), kind.purpose)
        kind = kind._replace(key_id=encrypted.key_id)
    size = slot_bytes(kind)
    try:
        return open_disk(
            directory,
            kind,
            cipher,
            num_slots=_slots(config, config.disk_bytes, size),
            engines=config.engines,
            tenant_slots=_tenant_slots(config, size),
        )
    except OSError as error:
        reason = error.strerror or str(error)
        log.warning("kv_disk_failed path=%s reason=%r: served without it", directory, reason)
        return None


def _slots(config: TiersConfig, nbytes: int, slot_bytes: int) -> int:
    slots = nbytes // slot_bytes
    if not slots:
        raise UsageError(f"{config.option}: a page of this model takes {slot_bytes} bytes; give it more")
    return slots


def _tenant_slots(config: TiersConfig, slot_bytes: int) -> int | None:
    return None if config.tenant_bytes is None else config.tenant_bytes // slot_bytes


def _admission(config: TiersConfig, slots: int) -> Callable[[], TierAdmission]:
    if config.admission == "always":
        return TierAdmission
    return lambda: AdmitReused(REMEMBERED * slots)
