"""Engines and gateways of different hosts, as the command lines of both sides name them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from firelane.cluster.addresses import Address
from firelane.link.tls import TlsFiles
from firelane.options import Group, Option
from firelane.options.log_format import LogFormat

ENGINES_PORT = 29600
ENGINES = Group(
    "engines",
    "engines on other hosts",
    "in place of engines here: each is a `firelane engine` of the same model",
)
GATEWAYS = Group("gateways", "gateways", common=True, table="server")
CA = "certificates of the CA that signs those of the other side (PEM)"
CERT = "own certificate, which the other side checks (PEM)"
KEY = "the certificate's key (PEM, not encrypted)"


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """addresses: each has one engine or several. tls: None on this machine alone."""

    addresses: tuple[Address, ...]
    tls: TlsFiles | None = None


@dataclass(frozen=True, kw_only=True)
class EngineAddresses:
    """Addresses at which a gateway finds engines of other hosts: its side of the command line."""

    engines: Annotated[
        tuple[str, ...],
        Option(
            "where engines are; each address of a name is one, also those that it gets later",
            ENGINES,
            metavar="HOST[:PORT]",
            words=True,
            default=f"engines here; port {ENGINES_PORT}",
            see="cluster.md#engines-on-several-hosts",
        ),
    ] = ()
    engine_tls_ca: Annotated[Path | None, Option(CA, ENGINES)] = None
    engine_tls_cert: Annotated[Path | None, Option(CERT, ENGINES)] = None
    engine_tls_key: Annotated[Path | None, Option(KEY, ENGINES)] = None


@dataclass(frozen=True, kw_only=True)
class EngineListener:
    """The address at which an engine waits for gateways of other hosts: its side of the command line."""

    host: Annotated[str, Option("address to listen on", GATEWAYS, metavar="HOST")] = "127.0.0.1"
    port: Annotated[
        int, Option("port; 0 takes a free one", GATEWAYS, metavar="PORT", least=0, most=65535)
    ] = ENGINES_PORT
    tls_ca: Annotated[Path | None, Option(CA, GATEWAYS)] = None
    tls_cert: Annotated[Path | None, Option(CERT, GATEWAYS)] = None
    tls_key: Annotated[Path | None, Option(KEY, GATEWAYS)] = None
    drain_s: Annotated[
        float,
        Option(
            "seconds for requests in flight when it is ended", GATEWAYS, flag="drain-timeout", metavar="S"
        ),
    ] = 10.0
    log_format: LogFormat = "text"
