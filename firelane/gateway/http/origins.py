"""Which pages may use a server through their user's browser (Fetch Standard, 3.2: CORS).

A page of any origin may send requests to any address that the browser reaches, and may read the answers
where these say so. Where a key is needed the page has none. A server without keys takes local pages only, and
the names of this machine only, those by which containers know it included: another name may have been pointed
here to pass for the same origin (DNS rebinding).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from functools import cache, lru_cache
from urllib.parse import urlsplit

from firelane.errors import AccessError, UsageError
from firelane.gateway.config import is_loopback
from firelane.gateway.http.exchange import Request

ANY = "*"
PROGRAMS = (b"app", b"file", b"tauri", b"vscode-file", b"vscode-webview")
"""Schemes of pages that a program on the user's machine has brought along: no page of the web has them."""
INTERNAL = ".internal"
"""End of names that no public DNS has, such as host.docker.internal: none can be pointed here by others."""


class AnyOrigin:
    """Pages of all origins: they have no key, or the server is meant for them."""

    def check(self, request: Request) -> None:
        """Set `request.cors`."""
        request.cors = b"access-control-allow-origin: *\r\n"


class LocalOrigins:
    """Pages of this machine, of the server itself and of `allowed`. local_hosts_only: a request must name
    this machine, or a host of `allowed`, as its Host.
    """

    def __init__(self, allowed: Iterable[str], *, local_hosts_only: bool) -> None:
        """Raises UsageError on what is no origin."""
        self._allowed = frozenset(origin.lower().encode() for origin in allowed)
        self._hosts = frozenset(_authority(origin) for origin in self._allowed)
        self._local_hosts_only = local_hosts_only

    def check(self, request: Request) -> None:
        """Set `request.cors`. Raises AccessError."""
        headers = request.headers
        host = headers.get(b"host", b"").lower()
        if self._local_hosts_only and host and not is_local(host) and host not in self._hosts:
            raise AccessError(
                "this server needs no key, so it answers to the names of its own machine alone: "
                "name yours with --allow-origin, or use keys"
            )
        origin = headers.get(b"origin")
        if origin is None:
            return
        given = origin.lower()
        scheme, _, authority = given.partition(b"://")
        if given not in self._allowed and not (
            scheme in PROGRAMS
            or (scheme in (b"http", b"https") and (authority == host or is_local(authority)))
        ):
            raise AccessError(
                "pages of this origin may not use this server: name it with --allow-origin, or use keys"
            )
        request.cors = b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin


OriginPolicy = AnyOrigin | LocalOrigins
"""Whose pages may ask."""


def origin_policy(allowed: Iterable[str], *, keyless: bool, loopback: bool) -> OriginPolicy:
    """The policy of a server. allowed: origins as in --allow-origin. Raises UsageError."""
    allowed = list(allowed)
    if ANY in allowed or not (keyless or allowed):
        return AnyOrigin()
    return LocalOrigins(allowed, local_hosts_only=keyless and loopback)


@lru_cache(maxsize=256)
def is_local(authority: bytes) -> bool:
    """Whether a HOST[:PORT], in lower case, means the machine that it is used on."""
    name = authority.decode("ascii", "replace")
    end = name.find("]") + 1 or name.find(":")
    name = name[:end] if end > 0 else name
    return is_loopback(name) or name.endswith(INTERNAL) or name in _own_names()


@cache
def _own_names() -> frozenset[str]:
    """The names of this machine, in lower case."""
    name = socket.gethostname().lower()
    return frozenset((name, f"{name.partition('.')[0]}.local")) - {"", ".local"}


def _authority(origin: bytes) -> bytes:
    if origin == b"null":
        return origin
    parts = urlsplit(origin)
    if not parts.scheme or not parts.netloc or parts.path or parts.query or parts.fragment:
        raise UsageError(f"--allow-origin {origin.decode()}: give SCHEME://HOST[:PORT], null or *")
    return parts.netloc
