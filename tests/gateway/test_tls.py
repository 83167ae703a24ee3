"""HTTPS: certificates that can be used and that cannot, renewed under a running server."""

from __future__ import annotations

import shutil
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from service import PATIENCE_S

from firelane.errors import UsageError
from firelane.link.tls import ServerTls, TlsFiles

CERTIFICATES = Path(__file__).parent / "certificates"


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    install("one", tmp_path)
    return TlsFiles(cert=tmp_path / "server.pem", key=tmp_path / "server.key")


def install(name: str, folder: Path) -> None:
    """Replace a certificate as certbot does it: new files take the place of the old ones."""
    for suffix in ("pem", "key"):
        shutil.copyfile(CERTIFICATES / f"{name}.{suffix}", folder / "next")
        (folder / "next").replace(folder / f"server.{suffix}")


def trusting(name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATES / f"{name}.pem")


def secure(service, name: str = "one") -> httpx.Client:
    return httpx.Client(
        base_url=f"https://127.0.0.1:{service.gateway.port}",
        verify=trusting(name),
        timeout=PATIENCE_S,
        trust_env=False,
    )


def served_by(service) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", service.gateway.port), PATIENCE_S) as plain,
        context.wrap_socket(plain) as sock,
    ):
        found = sock.getpeercert(binary_form=True)
    assert found is not None
    pems = {path.stem: ssl.PEM_cert_to_DER_cert(path.read_text()) for path in CERTIFICATES.glob("*.pem")}
    return next(name for name, der in pems.items() if der == found)


def test_streams_over_tls(make_service, files: TlsFiles) -> None:
    service = make_service(tls=files)
    service.text = "the answer comes in many small pieces"
    with secure(service) as client:
        body = {"prompt": "say", "max_tokens": 64, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert client.get("/health").status_code == 200  # the connection is kept
        large = client.post("/v1/completions", content=b" " * 200_000)
        assert large.status_code == 413


def test_only_http_1_is_agreed_on(make_service, files: TlsFiles) -> None:
    service, context = make_service(tls=files), trusting("one")
    context.set_alpn_protocols(["h2", "http/1.1"])
    address = ("127.0.0.1", service.gateway.port)
    with (
        socket.create_connection(address, PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        assert sock.selected_alpn_protocol() == "http/1.1"


def test_plain_http_gets_no_answer_and_disturbs_nobody(make_service, files: TlsFiles) -> None:
    service = make_service(tls=files)
    with pytest.raises(httpx.HTTPError):
        service.http.get("/health")
    with secure(service) as client:
        assert client.get("/health").status_code == 200


def test_renewed_files_are_read_by_the_sweep(make_service, files: TlsFiles) -> None:
    service = make_service(tls=files)
    with secure(service) as client:
        assert client.get("/health").status_code == 200
        install("other", files.cert.parent)
        service.run(service.gateway._sweep)
        assert served_by(service) == "other"
        assert client.get("/health").status_code == 200  # on its old connection


def test_a_reload_of_unusable_files_keeps_the_old_ones(make_service, files, caplog) -> None:
    service = make_service(tls=files)
    shutil.copyfile(CERTIFICATES / "other.key", files.key)
    service.run(service.gateway.reload)
    assert served_by(service) == "one"
    assert "does not belong to the first certificate" in caplog.text
    files.cert.unlink()
    service.run(service.gateway._sweep)
    assert served_by(service) == "one"
    install("other", files.cert.parent)
    service.run(service.gateway.reload)
    assert served_by(service) == "other"


@pytest.mark.parametrize(
    ("cert", "key", "told"),
    [
        ("none.pem", "one.key", "--tls-cert .*none.pem: no such file"),
        ("one.pem", "none.key", "--tls-key .*none.key: no such file"),
        ("one.pem", "other.key", "does not belong to the first certificate of"),
        ("one.pem", "encrypted.key", "the key is encrypted: write it plain"),
        ("one.key", "one.key", "not a certificate and its key in PEM"),
        ("one.pem", "one.pem", "not a certificate and its key in PEM"),
    ],
)
def test_files_that_cannot_be_used(cert: str, key: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ServerTls(TlsFiles(cert=CERTIFICATES / cert, key=CERTIFICATES / key))
