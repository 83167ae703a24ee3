"""Options of engines on other hosts: where they are, and mutual TLS between them and gateways."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.cluster.addresses import Address
    from firelane.cluster.config import RemoteConfig
    from firelane.link.tls import TlsFiles

DEFAULT_PORT = 29600
LOCAL_ONLY = "engine"
"""Group of the options that a gateway without engines of its own cannot take."""


def add_engines(parser: argparse.ArgumentParser) -> None:
    """To `firelane serve`."""
    group = parser.add_argument_group(
        "engines on other hosts", "in place of engines here: each is a `firelane engine` of the same model"
    )
    group.add_argument(
        "--engines",
        nargs="+",
        metavar="HOST[:PORT]",
        help="where engines are; each address of a name is one, also those that it gets later (default port: "
        f"{DEFAULT_PORT})",
    )
    _add_tls(group, "--engine-tls", "of the engines")


def add_tls(group: Any) -> None:
    """To `firelane engine`."""
    _add_tls(group, "--tls", "of gateways")


def _add_tls(group: Any, prefix: str, whose: str) -> None:
    for name, text in (
        ("ca", f"certificates of the CA that signs those {whose} (PEM)"),
        ("cert", "own certificate, which the other side checks (PEM)"),
        ("key", "the certificate's key (PEM, not encrypted)"),
    ):
        group.add_argument(f"{prefix}-{name}", type=Path, metavar="FILE", help=text)


def cluster_tls(arguments: argparse.Namespace, prefix: str) -> TlsFiles | None:
    """Of the options that begin with `prefix`. Raises UsageError where some of them are missing."""
    from firelane.link.tls import TlsFiles

    names = tuple(f"{prefix}-{name}" for name in ("ca", "cert", "key"))
    given = [getattr(arguments, name.removeprefix("--").replace("-", "_")) for name in names]
    if not any(given):
        return None
    for name, path in zip(names, given, strict=True):
        if path is None:
            raise UsageError(f"{', '.join(names)} go together: {name} is missing")
    ca, cert, key = (path.expanduser() for path in given)
    return TlsFiles(ca=ca, cert=cert, key=key, prefix=prefix)


def check_plain(address: Address, tls: TlsFiles | None, prefix: str) -> None:
    """Frames leave this machine with TLS alone. Raises UsageError."""
    from firelane.gateway.config import is_loopback

    if tls is None and not is_loopback(address.host):
        raise UsageError(
            f"{address}: prompts and answers travel there: give {prefix}-ca, {prefix}-cert and {prefix}-key "
            "(without them, only addresses of this machine)"
        )


def remote_config(arguments: argparse.Namespace) -> RemoteConfig | None:
    """The options of `add_engines`; None where engines are here. Raises UsageError, also where other options
    need engines here."""
    from firelane.cluster.addresses import parse_address
    from firelane.cluster.config import RemoteConfig

    tls = cluster_tls(arguments, "--engine-tls")
    if arguments.engines is None:
        if tls is not None:
            raise UsageError(
                "--engine-tls-ca is of engines on other hosts: say with --engines where they are"
            )
        return None
    found = tuple(parse_address(text, DEFAULT_PORT) for text in arguments.engines)
    for address in found:
        check_plain(address, tls, "--engine-tls")
    _check_alone(arguments)
    return RemoteConfig(addresses=found, tls=tls)


def _check_alone(arguments: argparse.Namespace) -> None:
    if arguments.more_models:
        raise UsageError("--model beside --engines: they serve one model; run a server for each")
    if arguments.gateways > 1:
        raise UsageError(
            "--gateways beside --engines: run several `firelane serve` with the same --engines instead"
        )
    for option in _of_engines(arguments.parser):
        if getattr(arguments, option.dest, argparse.SUPPRESS) != option.default:
            name = option.option_strings[0]
            given = f"--role {option.dest}" if option.dest in ("prefill", "decode") else "it"
            raise UsageError(f"{name} beside --engines: give {given} to `firelane engine`, on their hosts")


def _of_engines(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Options that are about processes of engines."""
    own = {
        "replicas",
        "prefill",
        "decode",
        "no_sandbox",
        "nnodes",
        "node_rank",
        "master_addr",
        "cluster_key_file",
        "kv_transfer_address",
        "kv_transport",
        "kv_transfer_cipher",
    }
    return [
        action
        for group in parser._action_groups
        for action in group._group_actions
        if action.option_strings and (group.title == LOCAL_ONLY or action.dest in own)
    ]
