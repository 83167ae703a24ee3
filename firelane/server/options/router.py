"""Routers outside, and pages that travel between servers: what options say of them."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import msgspec

from firelane.engine_config import PAGES, EngineConfig, KeyFile
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.gateway.kv_events.config import OPTION, KvEventsConfig
from firelane.nixl.installed import is_installed
from firelane.node.remote_peers import (
    CipherMode,
    RemotePeersConfig,
    cipher_is_installed,
    is_loopback,
    is_private,
)
from firelane.options import Group, Option, Values, fields
from firelane.server.engine_shares import EngineOptions
from firelane.server.options.travelling_pages import check_mapped, check_travelling, refuse
from firelane.storage import cluster_key

TRANSFER, TRANSPORT, CIPHER = "--kv-transfer-address", "--kv-transport", "--kv-transfer-cipher"
ROUTERS = Group("routers", "routers outside")


@dataclass(frozen=True, kw_only=True)
class PageExchange:
    """Exchange of pages with engines of other servers. address: None: there is none."""

    address: Annotated[
        str | None,
        Option(
            "exchange pages of the KV cache with engines of other servers, which reach this one's first "
            "engine there (needs --cluster-key-file)",
            PAGES,
            flag="kv-transfer-address",
            metavar="IP:PORT",
            see="cluster.md",
        ),
    ] = None
    cipher: Annotated[
        CipherMode,
        Option(
            "whether pages travel under a cipher (AES-256-GCM; needs the extra `encryption`): auto = between "
            "hosts; on = also within one; off = only where the other end asks for it, for networks that have "
            "a cipher themselves",
            PAGES,
            flag="kv-transfer-cipher",
            choices=("auto", "on", "off"),
            see="security.md#pages-between-hosts",
        ),
    ] = "auto"
    key_file: KeyFile = None


@dataclass(frozen=True, kw_only=True)
class Routers:
    """Routers outside that are told of each engine's prefix cache."""

    kv_events: Annotated[
        str | None,
        Option(
            "publish which blocks of tokens engines have cached, over ZeroMQ as vLLM does, for routers "
            "outside (needs the extra `kv-events`); for example "
            """'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'""",
            ROUTERS,
            flag="kv-events-config",
            metavar="JSON",
            see="kubernetes.md#kv-events",
        ),
    ] = None


def with_routers(values: Values, options: EngineOptions, settings: Environment) -> EngineOptions:
    """The same engines with the routers and the exchange of pages that options give. Raises UsageError."""
    engine, events = options.engine, _kv_events(values, options)
    if events is not None:
        engine = msgspec.structs.replace(engine, cache_events=True)
    remote = _remote_peers(values, options, settings)
    engine = with_nixl(engine, remote)
    return dataclasses.replace(options, engine=engine, kv_events=events, remote_peers=remote)


def _kv_events(values: Values, options: EngineOptions) -> KvEventsConfig | None:
    text = Routers(**fields(Routers, values)).kv_events
    config = None if text is None else KvEventsConfig.parse(text)
    if config is None:
        return None
    refuse(
        OPTION,
        ("engines" in values, "--engines", "engines of other hosts do not tell of their caches"),
        (options.models > 1, "several models", "subscribers tell engines apart by their ports"),
        (not options.engine.prefix_cache, "--no-prefix-cache", "without the cache there are no events"),
        (bool(values.get("take_over")) and config.binds, "--take-over", "the server before has the ports"),
    )
    return config


def _remote_peers(values: Values, options: EngineOptions, settings: Environment) -> RemotePeersConfig | None:
    exchange = PageExchange(**fields(PageExchange, values))
    if exchange.address is None:
        return None
    refuse(
        TRANSFER,
        (options.models > 1, "several models", "each engine has a port of its own"),
        (bool(values.get("take_over")), "--take-over", "the server before has the port"),
    )
    return page_exchange(exchange, options.engine, options.replicas, settings)


def with_nixl(engine: EngineConfig, remote: RemotePeersConfig | None) -> EngineConfig:
    """The same engine; where its pages travel by NIXL, in shared memory, where NIXL reads them. Raises
    UsageError."""
    if engine.kv_transport != "nixl":
        return engine
    if remote is None:
        raise UsageError(f"{TRANSPORT} nixl: give {TRANSFER}, from which other servers have pages, too")
    if not is_installed():
        raise UsageError(f"{TRANSPORT} nixl: NIXL is not installed; pip install 'firelane[rdma]'")
    check_mapped(engine, f"{TRANSPORT} nixl")
    memory = "private" if engine.backend == "null" else "shared"
    return msgspec.structs.replace(engine, kv_cache_memory=memory)


def page_exchange(
    exchange: PageExchange, engine: EngineConfig, engines: int, settings: Environment
) -> RemotePeersConfig:
    """Exchange of pages between so many engines and those of other servers. Raises UsageError."""
    assert exchange.address is not None
    host, port = _address(TRANSFER, exchange.address, engines)
    check_travelling(engine, TRANSFER)
    _check_cipher(exchange.cipher, host, engine.kv_transport)
    key = cluster_key(exchange.key_file, settings.cluster_key)
    return RemotePeersConfig(host, port, key, exchange.cipher)


def _check_cipher(mode: CipherMode, host: str, transport: str) -> None:
    """Raises UsageError where pages cannot travel under a cipher as it is wanted."""
    if mode == "on" and transport == "nixl":
        raise UsageError(f"{CIPHER} on beside {TRANSPORT} nixl: NIXL has no cipher; give one of both")
    needed = mode == "on" or (mode == "auto" and not is_loopback(host))
    if needed and not cipher_is_installed():
        raise UsageError(
            f"{TRANSFER}: pages travel between hosts under a cipher, whose package is missing; pip install "
            f"'firelane[encryption]', or give {CIPHER} off where the network has a cipher itself"
        )


def _address(option: str, text: str, engines: int) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not is_private(host):
        raise UsageError(
            f"{option} {text[:80]}: give IP:PORT with an address of a private network by which other servers "
            "reach this one; pages are not for the internet"
        )
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= (1 << 16) - engines:
        raise UsageError(
            f"{option} {text[:80]}: give a port from 1 to {(1 << 16) - engines} behind the address"
        )
    return host, int(port)
