"""Configuration of the whole gateway."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from firelane import options
from firelane.errors import UsageError
from firelane.gateway.config.groups import FILES, LIMITS, SERVER, TENANTS
from firelane.gateway.config.limits import FileLimits, HttpLimits, StreamLimits
from firelane.gateway.config.model import ModelConfig
from firelane.link.tls import TlsFiles
from firelane.options import Option, OptionError
from firelane.options.log_format import TELEMETRY, LogFormat

MOST_GATEWAYS = 64


def _otlp_address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise OptionError(f"{text[:80]}: give http://HOST:PORT of an OTLP collector")
    return text


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """models: the first one serves requests that name none. max_connections: 0: as many as the process may
    open. otlp_endpoint: None: traces go nowhere, "": as OTEL_EXPORTER_OTLP_ENDPOINT says. data_dir: None:
    files and batches are not kept. tls: of the port; None: it speaks plain HTTP. run_dir: where successors
    ask servers of this user for their ports; None: nowhere. take_over: without such a server this makes no
    difference.
    """

    models: tuple[ModelConfig, ...]
    host: Annotated[str, Option("address to listen on", SERVER, metavar="HOST")] = "127.0.0.1"
    port: Annotated[int, Option("port; 0 takes a free one", SERVER, metavar="PORT", least=0, most=65535)] = (
        8000
    )
    gateways: Annotated[
        int,
        Option(
            "gateway processes that share the port",
            SERVER,
            least=1,
            most=MOST_GATEWAYS,
            see="serving.md#several-gateway-processes",
        ),
    ] = 1
    max_queue: Annotated[
        int,
        Option("requests of a model that may wait before others get status 429", SERVER, least=0),
    ] = 1024
    wait: Annotated[
        bool,
        Option(
            "requests wait while their model loads, instead of getting status 503",
            SERVER,
            both=True,
            default="with one model they do",
        ),
    ] = False
    max_stored_responses: Annotated[
        int,
        Option(
            "answers of /v1/responses kept, to be read and continued; 0: none",
            SERVER,
            least=0,
            see="api.md",
            file=True,
        ),
    ] = 1024
    any_model: Annotated[
        bool,
        Option(
            "whatever model a request names, the lone one answers (for programs with a fixed name)", SERVER
        ),
    ] = False
    unknown_fields: Annotated[
        str,
        Option(
            "request fields that no API here knows: ignore names them in the header x-ignored-fields, refuse "
            "answers with status 400",
            SERVER,
            choices=("ignore", "refuse"),
        ),
    ] = "ignore"
    api_keys: Annotated[
        Path | None,
        Option(
            "tenants, hashed keys and quotas (TOML or JSON); read again on SIGHUP", TENANTS, see="tenants.md"
        ),
    ] = None
    allow_anonymous: Annotated[
        bool,
        Option(
            "serve other machines without --api-keys: anyone who reaches the port may use the server", TENANTS
        ),
    ] = False
    allow_origins: Annotated[
        tuple[str, ...],
        Option(
            "origin whose pages may use the server, as http://HOST:PORT, or * for all; may be repeated",
            TENANTS,
            flag="allow-origin",
            metavar="ORIGIN",
            default="all with --api-keys, else those of this machine",
            see="security.md",
        ),
    ] = ()
    prices: Annotated[
        Path | None,
        Option(
            "prices of tokens by model (TOML or JSON), for costs in metrics and log; read again on SIGHUP",
            TENANTS,
            see="tenants.md#prices",
        ),
    ] = None
    tls: TlsFiles | None = None
    max_queue_age_s: Annotated[
        float,
        Option("a request that has not begun after so long gets status 503", LIMITS, metavar="S", file=True),
    ] = 600.0
    max_connections: Annotated[
        int,
        Option(
            "open connections before others get status 503",
            LIMITS,
            least=1,
            default="what the limit of open files allows",
            file=True,
        ),
    ] = 0
    limits: HttpLimits = field(default_factory=HttpLimits)
    streams: StreamLimits = field(default_factory=StreamLimits)
    take_over: Annotated[
        bool,
        Option(
            "get the port from the server of this user that has it, once all models are ready; that one ends "
            "when it has answered what it has begun",
            LIMITS,
            see="serving.md#upgrades",
        ),
    ] = False
    drain_s: Annotated[
        float,
        Option(
            "seconds for which requests may go on after the first SIGTERM",
            LIMITS,
            flag="drain-timeout",
            metavar="S",
        ),
    ] = 10.0
    data_dir: Annotated[
        Path | None,
        Option(
            "where uploaded files and batches are kept",
            FILES,
            metavar="DIR",
            default="below the cache directory, by served name and port",
            see="api.md#files-and-batches",
        ),
    ] = None
    files: FileLimits = field(default_factory=FileLimits)
    run_dir: Path | None = None
    log_format: LogFormat = "text"
    metrics_port: Annotated[
        int | None,
        Option(
            "a second port for /metrics and /health alone, without a key",
            TELEMETRY,
            metavar="PORT",
            least=0,
            most=65535,
        ),
    ] = None
    log_prompts: Annotated[bool, Option("log the prompts of requests, in clear text", TELEMETRY)] = False
    otlp_endpoint: Annotated[
        str | None,
        Option(
            "send OpenTelemetry traces to this collector over HTTP (needs the extra `otel`; the usual OTEL_ "
            "variables count too)",
            TELEMETRY,
            metavar="URL",
            read=_otlp_address,
            see="observability.md#traces",
        ),
    ] = None

    def __post_init__(self) -> None:
        names = [name for model in self.models for name in model.all_names]
        if not all(model.names for model in self.models) or not names:
            raise UsageError("no served model name: give at least one")
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"the name '{name}' is given twice: give each model names of its own")
        if self.any_model and len(self.models) > 1:
            raise UsageError("--any-model is for one model: leave it out, or serve one")
        options.check(self)


def is_loopback(name: str) -> bool:
    """Whether a host's name or address, brackets allowed, means the machine that it is used on."""
    import ipaddress

    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
