"""Addresses of engines as users write them: what was read is written in a way that reads the same."""

from __future__ import annotations

from firelane.cluster.addresses import parse_address
from firelane.errors import UsageError
from fuzz.target import Target


def run(data: bytes) -> None:
    address = parse_address(data.decode(errors="replace"), 5600)
    assert 0 < address.port < 1 << 16
    assert parse_address(str(address), 1) == address


TARGET = Target(
    run=run,
    refusals=(UsageError,),
    most_bytes=1 << 13,
    words=(b"[::1]:", b"localhost", b":65535", b"xn--", b".", b"127.0.0.1:0", b"\xc3\xa9"),
)
