"""Web servers as stores: those that cannot be used are told apart, each with what to do."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from firelane.errors import StoreError
from firelane.stores.address import parse
from firelane.stores.client import ObjectStore, Patience

CERTIFICATES = Path(__file__).parent.parent / "gateway" / "certificates"


def opened(url: str) -> ObjectStore:
    return ObjectStore(parse(url), allow_http=True, patience=Patience(retries=0))


class WholeFiles(BaseHTTPRequestHandler):
    """Answers with all of a file, whatever is asked for."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"x" * 100)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def web() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), WholeFiles) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_web_server_without_ranges(web: HTTPServer) -> None:
    store = opened(f"http://127.0.0.1:{web.server_port}/model")
    with pytest.raises(StoreError, match=r"the server gives no parts of files \(Range\)"):
        store.read(store.head("a.safetensors"), 5, 10)


def test_a_certificate_that_is_not_trusted(web: HTTPServer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "one.pem", CERTIFICATES / "one.key")
    web.socket = context.wrap_socket(web.socket, server_side=True)
    store = opened(f"https://127.0.0.1:{web.server_port}/model")
    with pytest.raises(StoreError, match=r"certificate is not trusted \(\w+\): name its CA by SSL_CERT_FILE"):
        store.head("config.json")
