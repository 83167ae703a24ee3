"""Stand-in for the Hugging Face hub on loopback: model info, file tree, redirects to where large files lie,
ETags, ranges, and faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "owner/tiny"
LARGE_BYTES = 1 << 16
"""Files from this size on lie elsewhere, named by the digest of their bytes."""


@dataclass
class Hub:
    """One model. refuses: status, X-Error-Code of all answers of the API; limits: how many of the next
    requests for large files get 429; cuts: after how many bytes the next answers with a large file break off;
    holds: large files come to a stop there until the test says so; declares: sizes that the hub states in
    place of true ones. token: without it the model is not shown."""

    files: dict[str, bytes]
    url: str = ""
    token: str = ""
    refuses: tuple[int, str] | None = None
    limits: int = 0
    cuts: list[int] = field(default_factory=list)
    holds: int | None = None
    is_held: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)
    declares: dict[str, int] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes of each file that went out."""
    ranges: list[str] = field(default_factory=list)

    @property
    def elsewhere(self) -> str:
        """Another host, whose redirects clients do not follow when they only ask for headers."""
        return self.url.replace("127.0.0.1", "localhost")

    def size(self, name: str) -> int:
        return self.declares.get(name, len(self.files[name]))

    def is_large(self, name: str) -> bool:
        return len(self.files[name]) >= LARGE_BYTES

    def blob(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()[: 64 if self.is_large(name) else 40]


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Hub]:
    hub = Hub(files)
    server = Server(hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = hub


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.server.hub
        address = urlsplit(self.path)
        parts = address.path.strip("/").split("/")
        if parts[0] == "cdn":
            self._large(next(name for name in hub.files if hub.blob(name) == parts[1]))
        elif hub.refuses is not None:
            self._send(hub.refuses[0], {"X-Error-Code": hub.refuses[1]} if hub.refuses[1] else {})
        elif hub.token and self.headers["Authorization"] != f"Bearer {hub.token}":
            self._send(401, {"X-Error-Code": "RepoNotFound"})
        elif parts[0] == "api":
            self._api(parts[1:], "blobs" in parse_qs(address.query))
        else:
            self._resolve(parts)

    def _api(self, parts: list[str], has_sizes: bool) -> None:
        hub = self.server.hub
        if "/".join(parts[1:3]) != NAME:
            self._send(404, {"X-Error-Code": "RepoNotFound"})
        elif parts[3:4] == ["tree"]:
            self._json([_entry(hub, name) for name in hub.files])
        else:
            siblings = [_sibling(hub, name) if has_sizes else {"rfilename": name} for name in hub.files]
            self._json({"id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": siblings})

    def _resolve(self, parts: list[str]) -> None:
        """owner/tiny/resolve/COMMIT/FILE."""
        hub = self.server.hub
        name = "/".join(parts[4:])
        if name not in hub.files:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        own = {"X-Repo-Commit": COMMIT, "ETag": f'"{hub.blob(name)}"'}
        if not hub.is_large(name):
            hub.sent[name] += len(hub.files[name]) if self.command == "GET" else 0
            self._send(200, own, hub.files[name])
            return
        linked = {"X-Linked-ETag": own["ETag"], "X-Linked-Size": str(hub.size(name))}
        self._send(302, own | linked | {"Location": f"{hub.elsewhere}/cdn/{hub.blob(name)}"})

    def _large(self, name: str) -> None:
        hub = self.server.hub
        if hub.limits:
            hub.limits -= 1
            self._send(429, {"RateLimit": '"resolvers";r=0;t=1'})
            return
        data, begin = hub.files[name], 0
        if asked := self.headers["Range"]:
            hub.ranges.append(asked)
            begin = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        self._body(name, data, begin)

    def _body(self, name: str, data: bytes, begin: int) -> None:
        hub = self.server.hub
        end = begin + hub.cuts.pop(0) if hub.cuts else len(data)
        if hub.holds is not None and not hub.goes_on.is_set():
            self._part(name, data[begin : hub.holds])
            hub.is_held.set()
            hub.goes_on.wait()
            begin = hub.holds
        self._part(name, data[begin:end])
        self.close_connection |= end < len(data)

    def _part(self, name: str, data: bytes) -> None:
        hub = self.server.hub
        try:
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:  # the reader has gone
            self.close_connection = True
        hub.sent[name] += len(data)

    def _json(self, value: Any) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _entry(hub: Hub, name: str) -> dict[str, Any]:
    size, blob = hub.size(name), hub.blob(name)
    entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": blob[:40]}
    return entry | ({"lfs": {"oid": blob, "size": size, "pointerSize": 134}} if hub.is_large(name) else {})


def _sibling(hub: Hub, name: str) -> dict[str, Any]:
    size, blob = hub.size(name), hub.blob(name)
    found: dict[str, Any] = {"rfilename": name, "size": size, "blobId": blob[:40]}
    return found | ({"lfs": {"sha256": blob, "size": size, "pointerSize": 134}} if hub.is_large(name) else {})
