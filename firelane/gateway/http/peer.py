"""The other end of a connection, as far as fairness between clients wants to know it."""

from __future__ import annotations

import asyncio
import ipaddress

NOBODY = ("", "")
"""The client of a request that came by no connection."""
SITE_BITS = 64
"""Bits of an IPv6 address that name a site: all below are one site's, which may use as many as it likes (RFC
4291, 2.5.4)."""


def client_of(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Address and port of the other end: those of one address are one client, or share a proxy."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple) or len(peer) < 2:
        return NOBODY
    return _site(str(peer[0])), str(peer[1])


def _site(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.IPv6Network((parsed, SITE_BITS), strict=False))
