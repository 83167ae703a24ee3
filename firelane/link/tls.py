"""TLS of links and of servers: contexts made of files, which may be read again when these change."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from firelane.errors import UsageError

log = logging.getLogger(__name__)
ContextSource = Callable[[], ssl.SSLContext | None]
"""Tells the context of the next handshake; None: the connection is plain."""


def no_context() -> None:
    """The ContextSource of plain connections."""


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files of one end of its connections."""

    cert: Path
    """Its certificate, and those between it and a root."""
    key: Path
    """May be the same file; not encrypted."""
    ca: Path | None = None
    """Certificates of the CA that the other end needs one of (mutual TLS); None: clients need none."""
    prefix: str = "--tls"
    """The beginning of the options that gave the files: errors name them."""

    def server_context(self, protocol: str = "") -> ssl.SSLContext:
        """protocol: the one to be agreed on (ALPN). Raises UsageError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        if protocol:
            context.set_alpn_protocols([protocol])
        return self.load(context)

    def client_context(self) -> ssl.SSLContext:
        """For one who checks that the certificate of the other end is for the name by which it was told of
        that end. Raises UsageError."""
        return self.load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """The context, which has the files' certificates from now on. Raises UsageError."""
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None and not (path.is_file() and os.access(path, os.R_OK)):
                raise UsageError(f"{self.prefix}-{name} {path}: no such file, or it may not be read")
        context.minimum_version = ssl.TLSVersion.TLSv1_2 if self.ca is None else ssl.TLSVersion.TLSv1_3
        if self.ca is not None:
            self._load_ca(context, self.ca)
        self._load_cert(context)
        return context

    def _load_ca(self, context: ssl.SSLContext, ca: Path) -> None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"{self.prefix}-ca {ca}: no certificates in PEM ({error})") from error

    def _load_cert(self, context: ssl.SSLContext) -> None:
        is_encrypted = False

        def password() -> str:
            """In place of asking at the terminal."""
            nonlocal is_encrypted
            is_encrypted = True
            return ""

        try:
            context.load_cert_chain(self.cert, self.key, password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise UsageError(self._why(error, is_encrypted=is_encrypted)) from error

    def _why(self, error: Exception, *, is_encrypted: bool) -> str:
        cert, key = f"{self.prefix}-cert {self.cert}", f"{self.prefix}-key {self.key}"
        if is_encrypted:
            return f"{key}: the key is encrypted: write it plain (openssl pkey -in … -out …)"
        reason = getattr(error, "reason", None) or ""
        if reason == "KEY_VALUES_MISMATCH":
            return f"{key} does not belong to the first certificate of {self.cert}"
        return (
            f"{cert}, {key}: not a certificate and its key in PEM ({reason or error}): give a chain that "
            "begins with the own certificate, and its key"
        )


class MutualTls:
    """One end of connections whose ends show each other certificates. Looks at its files whenever a context
    is wanted: whoever renews them, or their CA, need tell nobody. Connections that are open go on."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext]) -> None:
        """make: TlsFiles.server_context or client_context. Raises UsageError where the files cannot be
        used."""
        self._files, self._make = files, make
        self._seen = _versions(files)
        self._context = make(files)

    def context(self) -> ssl.SSLContext:
        """The context of the next handshake. Files that cannot be used leave the one before, with a line in
        the log."""
        found = _versions(self._files)
        if found != self._seen:
            self._seen = found
            try:
                self._context = self._make(self._files)
            except UsageError as error:
                log.error("tls_not_reloaded error=%r", str(error))
            else:
                log.info("tls_reloaded cert=%s", self._files.cert)
        return self._context


class ServerTls:
    """Owns the context that all connections are made with. Handshakes that follow a reload use what was read;
    connections that are open go on as they are."""

    def __init__(self, files: TlsFiles, protocol: str = "") -> None:
        """protocol: as in TlsFiles.server_context. Raises UsageError where the files cannot be used."""
        self._files = files
        self._seen = _versions(files)
        self.context = files.server_context(protocol)

    def reload(self) -> None:
        """Files that cannot be used leave the old certificate, with a line in the log."""
        self._seen = _versions(self._files)
        try:
            self._files.server_context()  # the one in use would be left with half of it
            self._files.load(self.context)
        except UsageError as error:
            log.error("tls_not_reloaded error=%r", str(error))
        else:
            log.info("tls_reloaded cert=%s", self._files.cert)

    def reload_if_changed(self) -> None:
        """Cheap: whoever renews a certificate need tell nobody."""
        if _versions(self._files) != self._seen:
            self.reload()


def _versions(files: TlsFiles) -> list[tuple[int, int] | None]:
    paths = (files.cert, files.key, files.ca)
    return [None if path is None else _version(path) for path in paths]


def _version(path: Path) -> tuple[int, int] | None:
    """The version of the file behind the name, which may be a link that is pointed elsewhere."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
