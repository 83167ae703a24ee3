"""Engines on other hosts that options give: where they are, and mutual TLS between them and gateways."""

from __future__ import annotations

from typing import Any

from firelane.cluster.addresses import Address, parse_address
from firelane.cluster.config import ENGINES_PORT, RemoteConfig
from firelane.engine_config import ENGINE, HOSTS, PAGES, TIERS
from firelane.errors import UsageError
from firelane.gateway.config import is_loopback
from firelane.link.tls import TlsFiles
from firelane.options import OptionSet, Values

OF_ENGINES = ("replicas", "prefill", "decode", "no_sandbox")
"""Options about processes of engines, beside those of the groups that are about nothing else."""


def cluster_tls(values: Values, prefix: str) -> TlsFiles | None:
    """The files that the options give which begin with `prefix`. Raises UsageError where some of them are
    missing."""
    names = tuple(f"{prefix}-{name}" for name in ("ca", "cert", "key"))
    given: list[Any] = [values.get(name.removeprefix("--").replace("-", "_")) for name in names]
    if not any(given):
        return None
    for name, path in zip(names, given, strict=True):
        if path is None:
            raise UsageError(f"{', '.join(names)} go together: {name} is missing")
    ca, cert, key = given
    return TlsFiles(ca=ca, cert=cert, key=key, prefix=prefix)


def check_plain(address: Address, tls: TlsFiles | None, prefix: str) -> None:
    """Frames leave this machine with TLS alone. Raises UsageError."""
    if tls is None and not is_loopback(address.host):
        raise UsageError(
            f"{address}: prompts and answers travel there: give {prefix}-ca, {prefix}-cert and {prefix}-key "
            "(without them, only addresses of this machine)"
        )


def remote_config(values: Values, known: OptionSet) -> RemoteConfig | None:
    """The place of engines on other hosts; None where engines are here. known: the options of the command.
    Raises UsageError, also where other options need engines here."""
    tls = cluster_tls(values, "--engine-tls")
    if "engines" not in values:
        if tls is not None:
            raise UsageError(
                "--engine-tls-ca is of engines on other hosts: say with --engines where they are"
            )
        return None
    found = tuple(parse_address(text, ENGINES_PORT) for text in values["engines"])
    for address in found:
        check_plain(address, tls, "--engine-tls")
    _check_alone(values, known)
    return RemoteConfig(addresses=found, tls=tls)


def _check_alone(values: Values, known: OptionSet) -> None:
    if values.get("model"):
        raise UsageError("--model beside --engines: they serve one model; run a server for each")
    if values.get("gateways", 1) > 1:
        raise UsageError(
            "--gateways beside --engines: run several `firelane serve` with the same --engines instead"
        )
    for one in known.by_key.values():
        is_local = one.key in OF_ENGINES or one.option.group in (ENGINE, HOSTS, PAGES, TIERS)
        if is_local and values.get(one.key, one.default) != one.default:
            given = f"--role {one.key}" if one.key in ("prefill", "decode") else "it"
            raise UsageError(
                f"{one.name} beside --engines: give {given} to `firelane engine`, on their hosts"
            )
