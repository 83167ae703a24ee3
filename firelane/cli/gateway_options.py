"""Options of `serve` that say who may ask, how much one client may take, and what is told of it."""

from __future__ import annotations

import argparse
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firelane.cli.options import GIB, port, positive_float, positive_int
from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.link.tls import TlsFiles

MIB = 1 << 20
DEFAULT_PORT = 8000
"""Its data lies by served name alone."""


def add_access(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tenants")
    group.add_argument(
        "--api-keys",
        type=Path,
        metavar="FILE",
        help="tenants, hashed keys and quotas (TOML or JSON); read again on SIGHUP",
    )
    group.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="serve other machines without --api-keys: anyone who reaches the port may use the server",
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin whose pages may use the server, as http://HOST:PORT, or * for all; may be repeated "
        "(default: all with --api-keys, else those of this machine)",
    )
    group.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="serve HTTPS with this certificate (PEM, with those between it and a root); read again when the "
        "file changes, and on SIGHUP",
    )
    group.add_argument(
        "--tls-key",
        type=Path,
        metavar="FILE",
        help="the certificate's key (PEM, not encrypted; default: in the file of --tls-cert)",
    )
    group.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="prices of tokens by model (TOML or JSON), for costs in metrics and log; read again on SIGHUP",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max-queue-age-s",
        type=positive_float,
        default=600.0,
        metavar="S",
        help="a request that has not begun after so long gets status 503 (default: %(default)g)",
    )
    group.add_argument(
        "--max-connections",
        type=positive_int,
        metavar="N",
        help="open connections before others get status 503 (default: what the limit of open files allows)",
    )
    group.add_argument(
        "--max-body-mib",
        type=positive_int,
        default=32,
        metavar="N",
        help="largest request body in MiB; larger ones get status 413 (default: %(default)s)",
    )
    group.add_argument(
        "--header-timeout-s",
        type=positive_float,
        default=20.0,
        metavar="S",
        help="a request's headers must arrive within this time, its body within three times as long "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--idle-timeout-s",
        type=positive_float,
        default=75.0,
        metavar="S",
        help="a connection without a request is closed after this time (default: %(default)g)",
    )

    group.add_argument(
        "--take-over",
        action="store_true",
        help="get the port from the server of this user that has it, once all models are ready; that one "
        "ends when it has answered what it has begun",
    )
    group.add_argument(
        "--drain-timeout",
        type=positive_float,
        default=10.0,
        metavar="S",
        help="seconds for which requests may go on after the first SIGTERM (default: %(default)g)",
    )


def add_requests(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--any-model",
        action="store_true",
        help="whatever model a request names, the lone one answers (for programs with a fixed name)",
    )
    parser.add_argument(
        "--unknown-fields",
        choices=("ignore", "refuse"),
        default="ignore",
        help="what becomes of request fields that no API here knows: ignore names them in the header "
        "x-ignored-fields (default: %(default)s)",
    )


def add_storage(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files and batches")
    group.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where uploaded files and batches are kept (default: below the cache directory, by served name "
        "and port)",
    )
    group.add_argument(
        "--max-upload-mib",
        type=positive_int,
        default=200,
        metavar="N",
        help="largest file in MiB that can be uploaded (default: %(default)s)",
    )
    group.add_argument(
        "--tenant-files-gib",
        type=positive_float,
        default=10.0,
        metavar="X",
        help="GiB for the files of one tenant; further uploads get status 413 (default: %(default)g)",
    )


def storage_settings(
    arguments: argparse.Namespace, cache_dir: Path, served_name: str, own_port: int
) -> dict[str, Any]:
    """Fields of GatewayConfig that the options of `add_storage` give. Servers of one name on two ports have
    a directory each."""
    from firelane.gateway.config import FileLimits

    place = "model-" + urllib.parse.quote(served_name, safe="")
    if own_port != DEFAULT_PORT:
        place += f"@{own_port}"
    default = cache_dir / "data" / place
    return {
        "run_dir": cache_dir / "run",
        "data_dir": arguments.data_dir or default,
        "files": FileLimits(
            upload_bytes=arguments.max_upload_mib * MIB,
            tenant_bytes=int(arguments.tenant_files_gib * GIB),
        ),
    }


def add_telemetry(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("logs, metrics and traces")
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="form of a log line (default: %(default)s)",
    )
    group.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="a second port for /metrics and /health alone, without a key",
    )
    group.add_argument(
        "--log-prompts", action="store_true", help="log the prompts of requests, in clear text"
    )
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="send OpenTelemetry traces to this collector over HTTP (needs the extra `otel`; the usual OTEL_ "
        "variables count too)",
    )


def gateway_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of GatewayConfig that the options of this file give. Raises UsageError when the server would be
    open to other machines by oversight.
    """
    from firelane.gateway.config import HttpLimits, is_loopback

    keys: Path | None = arguments.api_keys
    if keys is None and not arguments.allow_anonymous and not is_loopback(arguments.host):
        raise UsageError(
            f"--host {arguments.host} lets other machines in, and no key would be needed: "
            "give --api-keys FILE, or --allow-anonymous if that is meant"
        )
    return {
        "api_keys": keys,
        "allow_origins": tuple(arguments.allow_origin),
        "any_model": arguments.any_model,
        "refuse_unknown_fields": arguments.unknown_fields == "refuse",
        "prices": arguments.prices,
        "take_over": arguments.take_over,
        "drain_s": arguments.drain_timeout,
        "tls": _tls_files(arguments.tls_cert, arguments.tls_key),
        "max_queue_age_s": arguments.max_queue_age_s,
        "max_connections": arguments.max_connections or 0,
        "log_prompts": arguments.log_prompts,
        "metrics_port": arguments.metrics_port,
        "otlp_endpoint": _otlp_endpoint(arguments.otlp_endpoint),
        "limits": HttpLimits(
            body_bytes=arguments.max_body_mib * MIB,
            header_s=arguments.header_timeout_s,
            receive_s=3 * arguments.header_timeout_s,
            idle_s=arguments.idle_timeout_s,
        ),
    }


def _tls_files(cert: Path | None, key: Path | None) -> TlsFiles | None:
    """Raises UsageError for a key alone."""
    from firelane.link.tls import TlsFiles

    if cert is None and key is not None:
        raise UsageError(f"--tls-key {key}: it needs the certificate, too: give --tls-cert FILE")
    return None if cert is None else TlsFiles(cert=cert, key=key or cert)


def _otlp_endpoint(asked: str | None) -> str | None:
    """An empty one means: as OpenTelemetry's variables say. Raises UsageError."""
    from firelane import env

    if asked is None:
        return "" if env.otlp_configured() else None
    if not asked.startswith(("http://", "https://")):
        raise UsageError(f"--otlp-endpoint {asked}: give http://HOST:PORT of an OTLP collector")
    return asked
