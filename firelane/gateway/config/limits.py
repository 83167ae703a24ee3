"""Limits of connections and of stored files, and the files of TLS."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from firelane import options
from firelane.errors import UsageError
from firelane.gateway.config.groups import FILES, LIMITS, TENANTS
from firelane.link.tls import TlsFiles
from firelane.options import Option


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
    body_bytes: Annotated[
        int,
        Option(
            "largest request body in MiB; larger ones get status 413",
            LIMITS,
            flag="max-body-mib",
            unit="MiB",
            least=1,
        ),
    ] = 32 << 20
    all_bodies_bytes: int = 1 << 30
    buffer_bytes: int = 256 << 10
    max_buffer_bytes: int = 8 << 20
    pipelined: int = 32
    header_s: Annotated[
        float,
        Option(
            "a request's headers must arrive within this time, its body within three times as long",
            LIMITS,
            flag="header-timeout-s",
            file=True,
            metavar="S",
        ),
    ] = 20.0
    receive_s: float = 60.0
    stall_s: float = 30.0
    idle_s: Annotated[
        float,
        Option(
            "a connection without a request is closed after this time",
            LIMITS,
            flag="idle-timeout-s",
            file=True,
            metavar="S",
        ),
    ] = 75.0


@dataclass(frozen=True, kw_only=True)
class FileLimits:
    """Limits of a tenant's storage. upload_bytes: of one file. tenant_bytes, tenant_files: of all its files,
    of those that batches write too (which are stored even beyond). tenant_uploads: at the same time.
    tenant_batches: that have not ended.
    """

    upload_bytes: Annotated[
        int,
        Option(
            "largest file in MiB that can be uploaded",
            FILES,
            flag="max-upload-mib",
            file=True,
            unit="MiB",
            least=1,
        ),
    ] = 200 << 20
    tenant_bytes: Annotated[
        int,
        Option(
            "GiB for the files of one tenant; further uploads get status 413",
            FILES,
            flag="tenant-files-gib",
            file=True,
            unit="GiB",
        ),
    ] = 10 << 30
    tenant_files: int = 1000
    tenant_uploads: int = 8
    tenant_batches: int = 100


@dataclass(frozen=True, kw_only=True)
class StreamLimits:
    """Limits of streams that clients can come back to. away_s: how long one goes on while nobody reads it,
    where the request names no time; most_away_s: the longest time that it may name. keep_s: for which one can
    be read after its end. tenant_bytes: of the events of a tenant; 0: none are kept. all_bytes: of all.
    """

    away_s: Annotated[
        float,
        Option(
            "seconds for which a stream with x-stream-resume goes on while nobody reads it, where the "
            "request names no time",
            LIMITS,
            flag="stream-resume-s",
            file=True,
            metavar="S",
            least=0,
            see="api.md#streams-that-come-back",
        ),
    ] = 30.0
    most_away_s: Annotated[
        float,
        Option(
            "the longest such time that a request may name",
            LIMITS,
            flag="max-stream-resume-s",
            file=True,
            metavar="S",
            least=0,
        ),
    ] = 600.0
    keep_s: Annotated[
        float,
        Option(
            "seconds for which such a stream can be read after its end",
            LIMITS,
            flag="stream-keep-s",
            file=True,
            metavar="S",
        ),
    ] = 300.0
    tenant_bytes: Annotated[
        int,
        Option(
            "MiB for the events of such streams of one tenant: beyond, the oldest that have ended go first; "
            "0: none are kept",
            LIMITS,
            flag="tenant-streams-mib",
            file=True,
            unit="MiB",
            least=0,
        ),
    ] = 64 << 20
    all_bytes: Annotated[
        int,
        Option(
            "MiB for the events of such streams of all tenants",
            LIMITS,
            flag="streams-mib",
            file=True,
            unit="MiB",
        ),
    ] = 256 << 20

    def __post_init__(self) -> None:
        if self.away_s > self.most_away_s:
            raise UsageError(
                f"stream_resume_s is {self.away_s:g}, more than max_stream_resume_s ({self.most_away_s:g}): "
                "raise the second one"
            )
        options.check(self)


@dataclass(frozen=True, kw_only=True)
class HttpsFiles:
    """The files of HTTPS, as options name them."""

    cert: Annotated[
        Path | None,
        Option(
            "serve HTTPS with this certificate (PEM, with those between it and a root); read again when the "
            "file changes, and on SIGHUP",
            TENANTS,
            flag="tls-cert",
            see="serving.md#https",
        ),
    ] = None
    key: Annotated[
        Path | None,
        Option(
            "the certificate's key (PEM, not encrypted)",
            TENANTS,
            flag="tls-key",
            default="in the file of --tls-cert",
            see="serving.md#https",
        ),
    ] = None

    def files(self) -> TlsFiles | None:
        """None for plain HTTP. Raises UsageError for a key alone."""
        if self.cert is None:
            if self.key is not None:
                raise UsageError(f"--tls-key {self.key}: it needs the certificate, too: give --tls-cert FILE")
            return None
        return TlsFiles(cert=self.cert, key=self.key or self.cert)
