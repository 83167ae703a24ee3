"""Configuration of a gateway. Imports next to nothing: the command builds it before the gateway's
own code is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from firelane.errors import UsageError
from firelane.gateway.engines.role_targets import RoleTargets
from firelane.gateway.routing_names import PAGE_AWARE
from firelane.link.tls import TlsFiles

MOST_NAME = 256
"""Characters of a served name."""

MOST_GATEWAYS = 64


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Limits of one connection. header_bytes: of all of a request that is no body: head, chunk extensions,
    trailers; and of requests that wait behind one until no more is read. header_s: for a request's headers to
    arrive; receive_s: for all of it; stall_s: how long a client may take nothing of its answer;
    max_buffer_bytes: of a stream that a client takes more slowly than it is made; idle_s: an open connection
    without a request; pipelined: requests waiting behind one. all_bodies_bytes: of all connections, until
    they are handled.
    """

    header_bytes: int = 64 << 10
    body_bytes: int = 32 << 20
    all_bodies_bytes: int = 1 << 30
    buffer_bytes: int = 256 << 10
    max_buffer_bytes: int = 8 << 20
    pipelined: int = 32
    header_s: float = 20.0
    receive_s: float = 60.0
    stall_s: float = 30.0
    idle_s: float = 75.0


@dataclass(frozen=True, kw_only=True)
class FileLimits:
    """Limits of a tenant's storage. upload_bytes: of one file. tenant_bytes, tenant_files: of all its files,
    of those that batches write too (which are stored even beyond). tenant_uploads: at the same time.
    tenant_batches: that have not ended.
    """

    upload_bytes: int = 200 << 20
    tenant_bytes: int = 10 << 30
    tenant_files: int = 1000
    tenant_uploads: int = 8
    tenant_batches: int = 100


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One served model. model_dir: where tokenizer.json and the chat template lie; None: nowhere yet. names:
    all are accepted, the first is reported. aliases: further names that requests may give, each with the name
    that it means. tokenizer_dir: where tokenizer.json lies instead. chat_template: a file in place of the
    model's own. tenants: those that may use it; None: all. routing: the policy that chooses an engine.
    role_targets: latencies that engines change their roles for; None: roles change by hand alone.
    shares_pages: engines have pages from each other.
    """

    model_dir: Path | None
    names: tuple[str, ...]
    tokenizer_dir: Path | None = None
    aliases: tuple[tuple[str, str], ...] = ()
    chat_template: Path | None = None
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    tenants: tuple[str, ...] | None = None
    routing: str = PAGE_AWARE
    role_targets: RoleTargets | None = None
    shares_pages: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for a name that no request could give, or that would break a line of the log."""
        for name in (*self.names, *(alias for alias, _ in self.aliases)):
            if not name.strip() or not name.isprintable() or len(name) > MOST_NAME:
                raise UsageError(
                    f"{name[:60]!r} cannot be a served name: give 1 to {MOST_NAME} printable characters with "
                    "--served-model-name"
                )


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """models: the first one serves requests that name none. max_queue: requests of one model that may wait
    beyond those that its engine runs. port 0: any free one. max_queue_age_s: how long a request may wait for
    its first step. api_keys: the file of tenants (None: all are served). prices: of tokens. max_connections:
    0: as many as the process may open. otlp_endpoint: where traces go (None: nowhere, "": as
    OTEL_EXPORTER_OTLP_ENDPOINT says). max_stored_responses: answers of /v1/responses that can be read again,
    0: none. data_dir: where files and batches are kept; None: they are not. allow_origins: origins whose
    pages may use the server, "*": all; without any, all where keys are needed, else those of this machine.
    refuse_unknown_fields: of requests; else they are ignored.
    metrics_port: of a second listener with metrics and health alone, without keys (None: there is none).
    wait: requests that come while their model loads wait for it, instead of being refused. any_model: the
    lone model answers whatever name a request gives. tls: of the port; None: it speaks plain HTTP.
    run_dir: where successors ask servers of this user for their ports; None: nowhere. take_over: the port
    from the server that has it now, once all models are ready; without one this makes no difference.
    drain_s: how long requests may go on after the first signal. gateways: processes that serve the port.
    """

    models: tuple[ModelConfig, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    max_queue: int = 1024
    max_queue_age_s: float = 600.0
    api_keys: Path | None = None
    prices: Path | None = None
    max_connections: int = 0
    log_prompts: bool = False
    otlp_endpoint: str | None = None
    max_stored_responses: int = 1024
    data_dir: Path | None = None
    allow_origins: tuple[str, ...] = ()
    refuse_unknown_fields: bool = False
    wait: bool = False
    any_model: bool = False
    metrics_port: int | None = None
    tls: TlsFiles | None = None
    run_dir: Path | None = None
    take_over: bool = False
    drain_s: float = 10.0
    gateways: int = 1
    limits: HttpLimits = field(default_factory=HttpLimits)
    files: FileLimits = field(default_factory=FileLimits)

    def __post_init__(self) -> None:
        names = [name for model in self.models for name in (*model.names, *dict(model.aliases))]
        if not all(model.names for model in self.models) or not names:
            raise UsageError("no served model name: give at least one")
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"the name '{name}' is given twice: give each model names of its own")
        if self.any_model and len(self.models) > 1:
            raise UsageError("--any-model is for one model: leave it out, or serve one")
        if self.max_queue < 0:
            raise UsageError(f"--max-queue is {self.max_queue}: use 0 or more")
        if not 1 <= self.gateways <= MOST_GATEWAYS:
            raise UsageError(f"--gateways is {self.gateways}: use 1 to {MOST_GATEWAYS}")
        if not 0 <= self.port < 65536:
            raise UsageError(f"--port is {self.port}: use 0 to 65535")


def is_loopback(name: str) -> bool:
    """Whether a host's name or address, brackets allowed, means the machine that it is used on."""
    import ipaddress

    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
