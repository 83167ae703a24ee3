"""Mutual TLS between gateways and the hosts of engines: both show a certificate of the cluster's own CA."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ClusterTls:
    """PEM files. ca: certificates of the CA; who has no certificate of it is refused. cert, key: of this
    process, the key not encrypted. names: of the options that gave them, for errors."""

    ca: Path
    cert: Path
    key: Path
    names: tuple[str, str, str]

    def server_context(self) -> ssl.SSLContext:
        """For a host, which lets gateways with a certificate in. Raises UsageError."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def client_context(self) -> ssl.SSLContext:
        """For a gateway, which checks the certificate of a host, and that it is for the name by which the
        gateway was told of it. Raises UsageError."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        files = (self.ca, self.cert, self.key)
        for option, path in zip(self.names, files, strict=True):
            if not path.is_file():
                raise UsageError(f"{option} {path}: there is no such file")
        try:
            context.load_verify_locations(self.ca)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"{self.names[0]} {self.ca}: no certificates in PEM ({error})") from error
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise UsageError(
                f"{self.names[1]} {self.cert}, {self.names[2]} {self.key}: not a certificate and its key in "
                f"PEM, the key not encrypted ({error})"
            ) from error
        return context


def _no_password() -> str:
    """In place of asking at the terminal."""
    return ""
