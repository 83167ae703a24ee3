"""The index of pages on a drive: a header (its checksum is made right), and records. What is no whole record
of a known kind is passed over."""

from __future__ import annotations

import numpy as np
import xxhash

from firelane.kv.tiers.records import FORMAT, HEADER_BYTES, RECORD, Kind, parse, table_of
from fuzz.target import Target


def run(data: bytes) -> None:
    text, _, rows = data.partition(b"\0")
    body = (FORMAT + text).ljust(HEADER_BYTES - 8, b"\0")[: HEADER_BYTES - 8]
    kind = Kind.of_header(body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little"))
    groups = 1 if kind is None else kind.num_groups
    table = table_of(rows)
    assert len(table) == len(rows) // RECORD.itemsize
    for record in parse(table, np.arange(len(table)), groups):
        assert record.packed() == table[record.slot].tobytes()


TARGET = Target(run=run, words=(b"\n", b"4096", b"\xd9\xa3", b"model\nlayout\n4096\n1\n\n2"))
