"""Ranges that come straight into the caller's memory, from a server of a few lines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from firelane.stores.direct import MOST_FAILURES, DirectReader
from firelane.stores.objects import StoredObject

DATA = bytes(range(256)) * 40
WANTED = StoredObject(name="x", nbytes=len(DATA), etag="one", modified_s=0)


class Handler(BaseHTTPRequestHandler):
    """One object at every path; what a query names is wrong with the answer."""

    protocol_version = "HTTP/1.1"
    addresses: set[tuple[str, int]]

    def do_GET(self) -> None:
        type(self).addresses.add(self.client_address)
        begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        wrong = self.path.partition("?")[2]
        part = DATA[begin : end + 1]
        self.send_response(200 if wrong == "status" else 206)
        self.send_header("ETag", '"two"' if wrong == "etag" else '"one"')
        self.send_header("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT")
        shift, more = wrong == "place", wrong == "size"
        self.send_header("Content-Range", f"bytes {begin + shift}-{end + shift}/{len(DATA) + more}")
        self.send_header("Content-Length", str(len(part) - (wrong == "short")))
        self.end_headers()
        self.wfile.write(part[: len(part) // 2] if wrong == "cut" else part)
        self.close_connection |= bool(wrong)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    Handler.addresses = set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def reader(server: str, wrong: str = "") -> DirectReader:
    query = f"?{wrong}" if wrong else ""
    return DirectReader(lambda path, _: f"{server}/{path}{query}", connect_s=120, read_s=120)


def test_ranges_come_over_one_connection(server: str) -> None:
    found, direct = bytearray(len(DATA)), reader(server)
    Handler.addresses.clear()
    for begin, end in ((0, 1), (1, 5000), (5000, len(DATA))):
        assert direct.read_into("x", WANTED, begin, memoryview(found)[begin:end])
    assert found == DATA
    assert len(Handler.addresses) == 1
    direct.close()


@pytest.mark.parametrize("wrong", ["status", "etag", "place", "size", "short", "cut"])
def test_what_is_not_the_range(server: str, wrong: str) -> None:
    assert not reader(server, wrong).read_into("x", WANTED, 10, memoryview(bytearray(500)))


def test_urls_that_cannot_be_signed_are_given_up() -> None:
    asked: list[str] = []

    def sign(path: str, _: int) -> str:
        asked.append(path)
        raise ValueError("no keys")

    direct = DirectReader(sign, connect_s=120, read_s=120)
    for _ in range(MOST_FAILURES + 5):
        assert not direct.read_into("x", WANTED, 0, memoryview(bytearray(5)))
    assert len(asked) == MOST_FAILURES


def test_a_proxy_is_left_to_the_library(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    Handler.addresses.clear()
    assert not reader(server).read_into("x", WANTED, 0, memoryview(bytearray(5)))
    assert not Handler.addresses
