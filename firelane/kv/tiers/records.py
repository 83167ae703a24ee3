"""The index of a segment: a header, and a record for each slot, which says whose page lies there.

A record is written after its page and cleared before: whenever a process was killed, or the power lost, a
record either fits its page or is found out by its proof (cipher.py). Times play no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from firelane.kv.prefix import DIGEST_BYTES, TENANT_BYTES
from firelane.kv.tiers.cipher import PROOF_BYTES
from firelane.kv.tiers.slots import PageKey

FORMAT = b"firelane kv 1\0\0\0"
HEADER_BYTES = 4096
RECORD = np.dtype(
    [
        ("sequence", "<u8"),
        ("group", "<u4"),
        ("name", f"V{DIGEST_BYTES}"),
        ("tenant", f"V{TENANT_BYTES}"),
        ("proof", f"V{PROOF_BYTES}"),
        ("check", "<u8"),
    ]
)
"""sequence: from 1, in the order of writing; 0 where there is no page. check: of the other fields and of the
slot."""
EMPTY = bytes(RECORD.itemsize)
CHECKED_BYTES = RECORD.itemsize - 8


class Kind(NamedTuple):
    """All that two engines must have in common to read each other's pages. identity: of the model, as in
    wire.Ready; layout_id: as in PageMemory; key_id: of the key that they are encrypted by, or ""."""

    identity: str
    layout_id: str
    page_bytes: int
    num_groups: int
    key_id: str = ""

    @property
    def purpose(self) -> str:
        """The purpose of the key that its pages are encrypted by: no other kind has the same."""
        return f"{self.identity} {self.layout_id} {self.page_bytes}"

    @classmethod
    def of_header(cls, header: bytes) -> Kind | None:
        """None of what is no header of this version."""
        lines = header[len(FORMAT) : -8].rstrip(b"\0").decode(errors="replace").split("\n")
        if len(lines) != len(cls._fields) + 1 or not all(lines[i].isdecimal() for i in (2, 3, 5)):
            return None
        kind = cls(lines[0], lines[1], int(lines[2]), int(lines[3]), lines[4])
        return kind if kind.header(int(lines[5])) == header else None

    def header(self, num_slots: int) -> bytes:
        text = "\n".join(map(str, (*self, num_slots))).encode()
        body = FORMAT + text.ljust(HEADER_BYTES - len(FORMAT) - 8, b"\0")
        return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


class SlotRecord(NamedTuple):
    slot: int
    sequence: int
    key: PageKey
    tenant: bytes
    proof: bytes

    def packed(self) -> bytes:
        group, name = self.key
        fields = np.array([(self.sequence, group, name, self.tenant, self.proof, 0)], RECORD).tobytes()
        return fields[:CHECKED_BYTES] + _check(fields, self.slot).to_bytes(8, "little")


def parse(table: NDArray[np.void], slots: NDArray[np.int64], num_groups: int) -> Iterator[SlotRecord]:
    """Records of these slots that are whole, in the order of writing."""
    order = slots[np.argsort(table["sequence"][slots], kind="stable")]
    for slot in order.tolist():
        row = table[slot].tobytes()
        sequence, group, name, tenant, proof, check = table[slot].item()
        if sequence and group < num_groups and check == _check(row, slot):
            yield SlotRecord(slot, sequence, (group, bytes(name)), bytes(tenant), bytes(proof))


def table_of(data: bytes) -> NDArray[np.void]:
    """Records [num_slots] of an index without its header."""
    whole = len(data) // RECORD.itemsize
    return np.frombuffer(data, RECORD, count=whole)


def _check(row: bytes, slot: int) -> int:
    return xxhash.xxh3_64_intdigest(row[:CHECKED_BYTES], seed=slot)
