"""What a gateway is told when it is made. Imports next to nothing: the command builds it before the gateway's
own code is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from firelane.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """What one connection may take. header_s: for a request's headers to arrive; receive_s: for all of it;
    stall_s: how long a client may leave its stream unread; idle_s: an open connection without a request;
    pipelined: requests waiting behind one. all_bodies_bytes: of all connections, until they are handled.
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
    """What a tenant may store. upload_bytes: of one file. tenant_bytes, tenant_files: of all its files, of
    those that batches write too (which are stored even beyond). tenant_uploads: at the same time.
    tenant_batches: that have not ended.
    """

    upload_bytes: int = 200 << 20
    tenant_bytes: int = 10 << 30
    tenant_files: int = 1000
    tenant_uploads: int = 8
    tenant_batches: int = 100


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """served_model_names: the first one is reported, all are accepted. model_dir: where tokenizer.json and
    the chat template lie. max_queue: requests that may wait beyond those that the engine runs. port 0: any
    free one. max_queue_age_s: how long a request may wait for its first step. api_keys: the file of tenants
    (None: all are served). prices: of tokens. max_connections: 0: as many as the process may open.
    otlp_endpoint: where traces go (None: nowhere, "": as OTEL_EXPORTER_OTLP_ENDPOINT says). aliases: further
    names that requests may give, each with the served name that it means. max_stored_responses: answers of
    /v1/responses that can be read again, 0: none. data_dir: where files and batches are kept; None: they
    are not.
    """

    model_dir: Path
    served_model_names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    max_queue: int = 1024
    max_queue_age_s: float = 600.0
    api_keys: Path | None = None
    prices: Path | None = None
    max_connections: int = 0
    log_prompts: bool = False
    otlp_endpoint: str | None = None
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    aliases: tuple[tuple[str, str], ...] = ()
    max_stored_responses: int = 1024
    data_dir: Path | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)
    files: FileLimits = field(default_factory=FileLimits)

    def __post_init__(self) -> None:
        if not self.served_model_names:
            raise UsageError("no served model name: give at least one")
        if self.max_queue < 0:
            raise UsageError(f"--max-queue is {self.max_queue}: use 0 or more")
        for alias, name in self.aliases:
            if name not in self.served_model_names:
                served = ", ".join(self.served_model_names)
                raise UsageError(f"--alias {alias}={name}: '{name}' is not served; served are {served}")
        if not 0 <= self.port < 65536:
            raise UsageError(f"--port is {self.port}: use 0 to 65535")
