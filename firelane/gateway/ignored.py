"""Fields of requests that are taken and change nothing: the client hears of each, and the log once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from firelane.gateway.http.exchange import Exchange

log = logging.getLogger(__name__)
HEADER = b"x-ignored-fields"
MOST_NAMES = 16
"""In one header."""
MOST_LOGGED = 1000
_PLAIN = re.compile(r"[\w.\[\]-]{1,64}", re.ASCII)
_LOGGED = re.compile(r"[a-z][a-z0-9_.\[\]]{0,39}")
"""Names as APIs have them: what else a client makes up may be a part of its user's text."""


class IgnoredFields:
    """Fields that requests to one server had, and that it did not read."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, exchange: Exchange, names: Iterable[str]) -> None:
        """Name them in the answer's head. Clients make names up: odd ones are not repeated."""
        plain = [name for name in dict.fromkeys(names) if _PLAIN.fullmatch(name)][:MOST_NAMES]
        if not plain:
            return
        exchange.extra_headers += b"%b: %b\r\n" % (HEADER, ", ".join(plain).encode())
        for name in plain:
            if name not in self._logged and len(self._logged) < MOST_LOGGED and _LOGGED.fullmatch(name):
                self._logged.add(name)
                path = exchange.request.path.decode("ascii", "replace")[:200]
                log.info("field_ignored name=%s path=%s (said once)", name, path)
