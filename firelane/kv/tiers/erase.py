"""Pages of one tenant erased from files that no engine uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from firelane.errors import UsageError
from firelane.kv.prefix import tenant_id
from firelane.kv.tiers.cipher import NoCipher, PageCipher
from firelane.kv.tiers.encrypted import Encrypted
from firelane.kv.tiers.records import Kind, parse
from firelane.kv.tiers.segment import TierSegment, lock_unused


@dataclass(kw_only=True)
class Erased:
    """left: files that were not looked at, and why."""

    pages: int = 0
    nbytes: int = 0
    left: dict[Path, str] = field(default_factory=dict[Path, str])


def erase_tenant(directory: Path, tenant: str, secret: bytes | None) -> Erased:
    """Erase a tenant's pages of all models in a directory of DiskTier; their bytes become zeros. secret: that
    pages are encrypted by. Raises UsageError where there is no such directory."""
    if not directory.is_dir():
        raise UsageError(f"{directory}: there is no such directory")
    erased = Erased()
    for index in sorted(directory.glob("*/*.index")):
        try:
            erased.left |= _erase(index, tenant_id(tenant), secret, erased)
        except OSError as error:
            erased.left[index] = error.strerror or str(error)
    return erased


def _erase(index: Path, tenant: bytes, secret: bytes | None, erased: Erased) -> dict[Path, str]:
    """Counts in `erased`; returns why it was left, if it was."""
    opened = lock_unused(index)
    if opened is None:
        return {index: "an engine uses it; end it first"}
    segment, kind = opened
    try:
        cipher = _cipher(kind, secret)
        if cipher is None:
            return {index: "its pages are encrypted, by another key: give it with --kv-disk-key-file"}
        slots = _slots_of(segment, kind, cipher.hidden(tenant))
        segment.erase(slots)
        erased.pages += len(slots)
        erased.nbytes += len(slots) * segment.slot_bytes
    finally:
        segment.close()
    return {}


def _slots_of(segment: TierSegment, kind: Kind, tenant: bytes) -> list[int]:
    table = segment.table()
    records = parse(table, np.flatnonzero(table["sequence"]), kind.num_groups)
    return [record.slot for record in records if record.tenant == tenant]


def _cipher(kind: Kind, secret: bytes | None) -> PageCipher | None:
    if not kind.key_id:
        return NoCipher()
    cipher = None if secret is None else Encrypted(secret, kind.purpose)
    return cipher if cipher is not None and cipher.key_id == kind.key_id else None
