"""Certificates of a server, read from files and read again when these change."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from firelane.errors import UsageError
from firelane.gateway.config import TlsFiles

log = logging.getLogger(__name__)
HANDSHAKE_S = 10.0
SHUTDOWN_S = 2.0
PROTOCOL = "http/1.1"


class Tls:
    """Owns the context that all connections are made with. Handshakes that follow a reload use what was read;
    connections that are open go on as they are."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises UsageError where they cannot be used."""
        self._files = files
        self._seen = self._state()
        self.context = _context(files)

    def reload(self) -> None:
        """Files that cannot be used leave the old certificate, with a line in the log."""
        self._seen = self._state()
        try:
            _context(self._files)  # the one in use would be left with half of it
            _load(self.context, self._files)
        except UsageError as error:
            log.error("tls_not_reloaded error=%r", str(error))
        else:
            log.info("tls_reloaded cert=%s", self._files.cert)

    def reload_if_changed(self) -> None:
        """Cheap: whoever renews a certificate need tell nobody."""
        if self._state() != self._seen:
            self.reload()

    def _state(self) -> list[tuple[int, int] | None]:
        return [_version(path) for path in (self._files.cert, self._files.key)]


def _version(path: Path) -> tuple[int, int] | None:
    """Of the file behind the name, which may be a link that is pointed elsewhere."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([PROTOCOL])
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Raises UsageError."""
    for option, path in (("--tls-cert", files.cert), ("--tls-key", files.key)):
        if not path.is_file() or not os.access(path, os.R_OK):
            raise UsageError(f"{option} {path}: no such file, or it may not be read")
    is_encrypted = False

    def password() -> str:
        nonlocal is_encrypted
        is_encrypted = True
        return ""

    try:
        context.load_cert_chain(files.cert, files.key, password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise UsageError(_why(files, error, is_encrypted=is_encrypted)) from error


def _why(files: TlsFiles, error: Exception, *, is_encrypted: bool) -> str:
    if is_encrypted:
        return f"--tls-key {files.key}: the key is encrypted: write it plain (openssl pkey -in … -out …)"
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"--tls-key {files.key} does not belong to the first certificate of {files.cert}"
    return (
        f"--tls-cert {files.cert}, --tls-key {files.key}: not a certificate and its key in PEM "
        f"({reason or error}): give a chain that begins with the server's own certificate, and its key"
    )
