"""Engines of a gateway that are on other hosts, as the command line names them."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.cluster.addresses import Address
from firelane.link.tls import TlsFiles


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """addresses: each has one engine or several. tls: None on this machine alone."""

    addresses: tuple[Address, ...]
    tls: TlsFiles | None = None
