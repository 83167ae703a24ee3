"""Options of `firelane serve` for routers outside: what engines tell them of their caches, and pages that
travel between servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firelane.cli.travelling_pages import check_mapped, check_travelling, refuse
from firelane.errors import UsageError
from firelane.nixl.installed import is_installed

if TYPE_CHECKING:
    from firelane.cli.engine_shares import EngineOptions
    from firelane.engine_config import EngineConfig
    from firelane.env import Environment
    from firelane.gateway.kv_events.config import KvEventsConfig
    from firelane.node.remote_peers import CipherMode, RemotePeersConfig

TRANSFER, TRANSPORT, CIPHER = "--kv-transfer-address", "--kv-transport", "--kv-transfer-cipher"


def add_routers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("routers outside")
    group.add_argument(
        "--kv-events-config",
        metavar="JSON",
        help="publish which blocks of tokens engines have cached, over ZeroMQ as vLLM does, for routers "
        "outside (needs the extra `kv-events`); for example "
        """'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'""",
    )
    add_transfer(
        group,
        "exchange pages of the KV cache with engines of other servers, where requests have "
        "kv_transfer_params; they reach this one's first engine there (needs --cluster-key-file)",
    )


def add_transfer(group: Any, does: str) -> None:
    """The address of pages, and their way, to a group. does: help of the former."""
    group.add_argument(TRANSFER, metavar="IP:PORT", help=does)
    group.add_argument(
        TRANSPORT,
        choices=("tcp", "nixl"),
        default="tcp",
        help="way of these pages: the connection itself, or NIXL, for networks with remote memory (RDMA), "
        "where both ends have it (needs the extra `rdma`; default: tcp)",
    )
    add_cipher(group)


def add_cipher(group: Any) -> None:
    group.add_argument(
        CIPHER,
        choices=("auto", "on", "off"),
        default="auto",
        help="whether pages travel under a cipher (AES-256-GCM; needs the extra `encryption`): auto = "
        "between hosts; on = also within one; off = only where the other end asks for it, for networks that "
        "have a cipher themselves (default: %(default)s)",
    )


def with_routers(
    arguments: argparse.Namespace, options: EngineOptions, settings: Environment
) -> EngineOptions:
    """The same engines with what the options of `add_routers` say. Raises UsageError."""
    import dataclasses

    import msgspec

    engine, events = options.engine, _kv_events(arguments, options)
    if events is not None:
        engine = msgspec.structs.replace(engine, cache_events=True)
    remote = _remote_peers(arguments, options, settings)
    if arguments.kv_transport == "nixl":
        engine = with_nixl(engine, remote)
    return dataclasses.replace(options, engine=engine, kv_events=events, remote_peers=remote)


def _kv_events(arguments: argparse.Namespace, options: EngineOptions) -> KvEventsConfig | None:
    from firelane.gateway.kv_events.config import OPTION, KvEventsConfig

    text: str | None = arguments.kv_events_config
    config = None if text is None else KvEventsConfig.parse(text)
    if config is None:
        return None
    refuse(
        OPTION,
        (bool(arguments.engines), "--engines", "engines of other hosts do not tell of their caches"),
        (options.models > 1, "several models", "subscribers tell engines apart by their ports"),
        (not options.engine.prefix_cache, "--no-prefix-cache", "without the cache there are no events"),
        (arguments.take_over and config.binds, "--take-over", "the server before has the ports"),
    )
    return config


def _remote_peers(
    arguments: argparse.Namespace, options: EngineOptions, settings: Environment
) -> RemotePeersConfig | None:
    text: str | None = arguments.kv_transfer_address
    if text is None:
        return None
    refuse(
        TRANSFER,
        (options.models > 1, "several models", "each engine has a port of its own"),
        (arguments.take_over, "--take-over", "the server before has the port"),
    )
    remote = page_exchange(text, arguments.cluster_key_file, options.engine, options.replicas, settings)
    return with_cipher(remote, arguments.kv_transfer_cipher, arguments.kv_transport)


def with_cipher(remote: RemotePeersConfig, mode: CipherMode, transport: str) -> RemotePeersConfig:
    """The same exchange, with pages under a cipher in this way. Raises UsageError."""
    from firelane.node.remote_peers import cipher_is_installed, is_loopback

    if mode == "on" and transport == "nixl":
        raise UsageError(f"{CIPHER} on beside {TRANSPORT} nixl: NIXL has no cipher; give one of both")
    needed = mode == "on" or (mode == "auto" and not is_loopback(remote.host))
    if needed and not cipher_is_installed():
        raise UsageError(
            f"{TRANSFER}: pages travel between hosts under a cipher, whose package is missing; pip install "
            f"'firelane[encryption]', or give {CIPHER} off where the network has a cipher itself"
        )
    return remote._replace(cipher=mode)


def with_nixl(engine: EngineConfig, remote: RemotePeersConfig | None) -> EngineConfig:
    """The same engine with pages by NIXL, which reads them in shared memory. Raises UsageError."""
    import msgspec

    if remote is None:
        raise UsageError(f"{TRANSPORT} nixl: give {TRANSFER}, from which other servers have pages, too")
    if not is_installed():
        raise UsageError(f"{TRANSPORT} nixl: NIXL is not installed; pip install 'firelane[rdma]'")
    check_mapped(engine, f"{TRANSPORT} nixl")
    memory = "private" if engine.backend == "null" else "shared"
    return msgspec.structs.replace(engine, kv_transport="nixl", kv_cache_memory=memory)


def page_exchange(
    text: str, key_file: Path | None, engine: EngineConfig, engines: int, settings: Environment
) -> RemotePeersConfig:
    """Exchange of pages between so many engines and those of other servers, from the address `text` on.
    Raises UsageError."""
    from firelane.node.remote_peers import RemotePeersConfig
    from firelane.storage import cluster_key

    host, port = _address(TRANSFER, text, engines)
    check_travelling(engine, TRANSFER)
    return RemotePeersConfig(host, port, cluster_key(key_file, settings.cluster_key))


def _address(option: str, text: str, engines: int) -> tuple[str, int]:
    from firelane.node.remote_peers import is_private

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
