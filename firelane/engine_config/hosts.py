"""Hosts that the ranks of one engine are on."""

from __future__ import annotations

from pathlib import Path

import msgspec


class HostsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that an engine's ranks are on, of which this process's is number `own`. address, port: where host
    0 takes connections of the others. key_file: with the secret that all share; None: FIRELANE_CLUSTER_KEY.
    timeout_s: for all to be there."""

    count: int
    own: int
    address: str
    port: int
    key_file: Path | None = None
    timeout_s: float = 300.0
