"""DirectReader: ranges of objects straight into the caller's memory, by URLs that the client library signs.

The library hands out buffers of its own, which costs a copy and as much memory again. Here a connection's
bytes are received where they are wanted. Each range is asked for once: whatever is not that range is left to
the library, which tries again and says what is wrong.
"""

from __future__ import annotations

import re
import ssl
from collections import deque
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import cached_property
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from threading import Lock
from time import monotonic
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from firelane.stores.objects import StoredObject, plain_etag

LIFETIME_S = 900
"""Seconds that a signed URL is valid, which is used for half of that."""
MOST_FAILURES = 8
"""In a row; then a store is asked through the library alone, for PAUSE_S."""
PAUSE_S = 60.0
MOST_IDLE = 32
RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
PARTIAL_CONTENT = 206


class DirectReader:
    """Reads of one directory's objects. Safe from many threads: each takes a connection that is idle, or
    opens one. sign: the URL of an object's path that is valid for so many seconds; may raise anything."""

    def __init__(self, sign: Callable[[str, int], str], *, connect_s: float, read_s: float) -> None:
        self._sign, self._connect_s, self._read_s = sign, connect_s, read_s
        self._urls: dict[str, tuple[SplitResult, float]] = {}
        self._idle: deque[HTTPConnection] = deque(maxlen=MOST_IDLE)
        self._lock = Lock()
        self._failures, self._paused_until_s = 0, 0.0

    def read_into(self, path: str, wanted: StoredObject, begin: int, out: memoryview) -> bool:
        """Fill `out` with the bytes from `begin` on of this version of an object. False where that fails,
        whatever the reason: `out` holds anything then."""
        if monotonic() < self._paused_until_s:
            return False
        try:
            done = self._read(self._url(path), wanted, begin, out)
        except Exception:  # of signing, too, which may be any: the library is asked next, and says it
            done = False
        self._note(path, done=done)
        return done

    def close(self) -> None:
        """Close what is idle. Idempotent; later reads open connections again."""
        while self._idle:
            self._idle.pop().close()

    def _note(self, path: str, *, done: bool) -> None:
        with self._lock:
            self._failures = 0 if done else self._failures + 1
            if not done:
                self._urls.pop(path, None)  # its right may have ended
            if self._failures >= MOST_FAILURES:
                self._failures, self._paused_until_s = 0, monotonic() + PAUSE_S

    def _url(self, path: str) -> SplitResult:
        found, until_s = self._urls.get(path, (None, 0.0))
        if found is not None and monotonic() < until_s:
            return found
        until_s = monotonic() + LIFETIME_S / 2
        url = urlsplit(self._sign(path, LIFETIME_S))
        self._urls[path] = url, until_s
        return url

    def _read(self, url: SplitResult, wanted: StoredObject, begin: int, out: memoryview) -> bool:
        connection = self._connection(url)
        is_whole = False
        try:
            connection.request("GET", f"{url.path}?{url.query}".rstrip("?"), headers=_asked(begin, len(out)))
            with connection.getresponse() as answer:
                if _is_range(answer, wanted, begin, len(out)):
                    is_whole = _fill(answer, out)
        finally:
            if is_whole and connection.sock is not None:
                self._idle.append(connection)
            else:
                connection.close()
        return is_whole

    def _connection(self, url: SplitResult) -> HTTPConnection:
        """Raises OSError, LookupError where a proxy stands between: that is the library's business."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        assert url.hostname is not None
        if getproxies().get(url.scheme) and not proxy_bypass(url.hostname):
            raise LookupError(url.scheme)
        connection = self._opened(url, url.hostname)
        connection.connect()
        connection.sock.settimeout(self._read_s)
        return connection

    def _opened(self, url: SplitResult, host: str) -> HTTPConnection:
        if url.scheme == "https":
            return HTTPSConnection(host, url.port, timeout=self._connect_s, context=self._tls)
        return HTTPConnection(host, url.port, timeout=self._connect_s)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _asked(begin: int, nbytes: int) -> dict[str, str]:
    return {"Range": f"bytes={begin}-{begin + nbytes - 1}"}


def _is_range(answer: HTTPResponse, wanted: StoredObject, begin: int, nbytes: int) -> bool:
    """Whether it is this range of this version, and nothing else."""
    found = RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status != PARTIAL_CONTENT or found is None or answer.length != nbytes:
        return False
    if tuple(map(int, found.groups())) != (begin, begin + nbytes - 1, wanted.nbytes):
        return False
    modified_s = int(parsedate_to_datetime(answer.headers["Last-Modified"]).timestamp())
    etag = plain_etag(answer.headers.get("ETag"))
    return wanted.is_same(
        StoredObject(name=wanted.name, nbytes=wanted.nbytes, etag=etag, modified_s=modified_s)
    )


def _fill(answer: HTTPResponse, out: memoryview) -> bool:
    done = 0
    while done < len(out):
        count = answer.readinto(out[done:])
        if count == 0:
            return False
        done += count
    return True
