"""Limits of connections and of stored files, and the files of TLS."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

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
