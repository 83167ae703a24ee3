"""The tier on a drive: found again by the next engine, however this one ends."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firelane.kv.tiers.cipher import PageCipher
from firelane.kv.tiers.foreign import ForeignSegments
from firelane.kv.tiers.memory import aligned
from firelane.kv.tiers.records import Kind, SlotRecord, parse
from firelane.kv.tiers.segment import TierSegment, open_own
from firelane.kv.tiers.slots import NO_SLOT, PageKey, SlotIndex
from firelane.kv.tiers.tier import TierStats

MOST_ERRORS = 3
"""In a row, after which the drive is left alone."""
log = logging.getLogger(__name__)


class DiskTier:
    """A PageTier on a drive. One write at a time; reads by as many threads as call."""

    name: Literal["disk"] = "disk"

    def __init__(
        self,
        segment: TierSegment,
        others: ForeignSegments,
        kind: Kind,
        cipher: PageCipher,
        tenant_slots: int | None = None,
    ) -> None:
        """Owns the segments. others: of engines beside this one."""
        self._segment, self._kind, self._cipher = segment, kind, cipher
        self.index = SlotIndex(segment.num_slots, tenant_slots)
        self._others = others
        self._proofs: dict[int, bytes] = {}
        self._sequence = 0
        """The number of the record written last."""
        self._buffers = threading.local()
        self._errors = 0
        self._is_failed = False
        self._read = self._written = self._damaged = 0
        self._restore()

    def contains(self, key: PageKey) -> bool:
        stored = self._stored(key)
        return not self._is_failed and (stored in self.index or stored in self._others)

    def touch(self, key: PageKey) -> None:
        self.index.touch(self._stored(key))

    def put(self, key: PageKey, tenant: bytes, page: NDArray[np.uint8], is_true: Callable[[], bool]) -> None:
        if self._is_failed:
            return
        copy = self._buffer()
        np.copyto(copy[: page.size], page)
        if is_true():
            self._put(key, tenant, copy, page.size)

    def _put(self, key: PageKey, tenant: bytes, copy: NDArray[np.uint8], nbytes: int) -> None:
        """copy: a slot's bytes, of which the page's are the first."""
        stored, owner = self._stored(key), self._cipher.hidden(tenant)
        slot = self.index.reserve(owner)
        if slot == NO_SLOT:
            return
        try:
            self._write(slot, stored, owner, copy, nbytes)
        except OSError as error:
            self.index.cancel(slot)
            self._note(error)
        else:
            self.index.publish(slot, stored, owner)

    def get(self, key: PageKey, into: NDArray[np.uint8]) -> bool:
        stored = self._stored(key)
        slot, generation = self.index.find(stored)
        if slot == NO_SLOT:
            return self._get_from_others(stored, into)
        proof = self._proofs.get(slot, b"")
        if not self._copy_own(slot, stored, proof, into):
            if self.index.is_current(slot, generation) and not self._is_failed:
                self._discard(slot, stored)
            return False
        self.index.touch(stored)
        return self.index.is_current(slot, generation)

    def forget(self, tenant: bytes) -> int:
        """Engines beside this one have to be told, too."""
        slots = self.index.slots_of(self._cipher.hidden(tenant))
        for slot in slots:
            owner = self.index.owner(slot)
            if owner is not None:
                self.index.discard(owner.key)
        erased = sum(map(self._erase, slots))
        if erased < len(slots):
            left, path = len(slots) - erased, self._segment.stem
            log.error("kv_disk_not_erased path=%s pages=%d: end the engine, and delete its files", path, left)
        return erased

    def standby(self) -> None:
        """Files stay."""

    def refresh(self) -> None:
        """Look at what other engines have stored since."""
        with contextlib.suppress(OSError):
            self._others.refresh()

    def stats(self) -> TierStats:
        evicted = self.index.evictions
        return TierStats(len(self.index), self._read, self._written, evicted, self._damaged)

    def close(self) -> None:
        self._segment.close()
        self._others.close()

    def _stored(self, key: PageKey) -> PageKey:
        return key[0], self._cipher.hidden(key[1])

    def _restore(self) -> None:
        """Pages of the engine that had these files before."""
        table = self._segment.table()
        records = list(parse(table, np.flatnonzero(table["sequence"]), self._kind.num_groups))
        self.index.restore((record.slot, record.key, record.tenant) for record in records)
        self._proofs = {record.slot: record.proof for record in records}
        self._sequence = max((record.sequence for record in records), default=0)

    def _write(self, slot: int, key: PageKey, tenant: bytes, copy: NDArray[np.uint8], nbytes: int) -> None:
        """Write a page to `slot`."""
        proof = self._cipher.seal(key, copy[:nbytes])
        self._segment.clear_record(slot)
        self._segment.write(slot, copy)
        self._sequence += 1
        self._segment.write_record(SlotRecord(slot, self._sequence, key, tenant, proof))
        self._proofs[slot] = proof
        self._written += 1
        self._errors = 0

    def _erase(self, slot: int) -> bool:
        try:
            self._segment.erase([slot])
        except OSError as error:
            self._note(error)
            return False
        return True

    def _get_from_others(self, key: PageKey, into: NDArray[np.uint8]) -> bool:
        for segment, slot, proof in self._others.find(key):
            with contextlib.suppress(OSError):  # of files that are not ours, and may have got shorter
                if self._copy(segment, slot, key, proof, into):
                    return True
        return False

    def _copy_own(self, slot: int, key: PageKey, proof: bytes, into: NDArray[np.uint8]) -> bool:
        try:
            return self._copy(self._segment, slot, key, proof, into)
        except OSError as error:
            self._note(error)
            return False

    def _copy(
        self, segment: TierSegment, slot: int, key: PageKey, proof: bytes, into: NDArray[np.uint8]
    ) -> bool:
        """Raises OSError."""
        buffer = self._buffer()
        segment.read(slot, buffer)
        page = buffer[: into.size]
        if not self._cipher.unseal(key, page, proof):
            return False
        np.copyto(into, page)
        self._read += 1
        self._errors = 0
        return True

    def _discard(self, slot: int, key: PageKey) -> None:
        """A page that is not what was stored."""
        if not self._damaged:
            log.warning("kv_disk_damaged path=%s slot=%d: the page is computed", self._segment.stem, slot)
        self._damaged += 1
        with contextlib.suppress(OSError):
            self._segment.clear_record(slot)
        self.index.discard(key)

    def _buffer(self) -> NDArray[np.uint8]:
        """The aligned buffer of this thread, which direct reads and writes need."""
        buffer = getattr(self._buffers, "page", None)
        if buffer is None:
            buffer = self._buffers.page = aligned(self._segment.slot_bytes)
        return buffer

    def _note(self, error: OSError) -> None:
        """Count an error of the drive. After some in a row it is left alone, and the log says so, once."""
        self._errors += 1
        if self._errors >= MOST_ERRORS and not self._is_failed:
            self._is_failed = True
            reason = error.strerror or str(error)
            log.warning("kv_disk_failed path=%s reason=%r: served without it", self._segment.stem, reason)


def open_disk(
    directory: Path,
    kind: Kind,
    cipher: PageCipher,
    *,
    num_slots: int,
    engines: int = 1,
    tenant_slots: int | None = None,
) -> DiskTier:
    """The tier in a directory of this user. engines: as in `open_own`. Raises OSError."""
    segment, is_found = open_own(directory, kind, num_slots, engines)
    tier = DiskTier(segment, ForeignSegments(directory, kind, segment), kind, cipher, tenant_slots)
    if is_found:
        log.info("kv_disk_opened path=%s pages=%d", segment.stem, tier.stats().pages)
    return tier
