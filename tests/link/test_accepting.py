"""Connections that are accepted: who is silent keeps nobody out, and who is refused is in the log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import shutil
import socket
import ssl
from pathlib import Path

import msgspec
import pytest
import uvloop

from firelane.errors import PeerLostError
from firelane.link import accepting
from firelane.link.accepting import GreetingServer
from firelane.link.framing import LENGTH_BYTES
from firelane.link.greeting import Refused, Welcome, hello, welcome
from firelane.link.listening import listening_sockets
from firelane.link.opening import Opening
from firelane.link.tls import MutualTls, TlsFiles

PEM = Path(__file__).parents[1] / "gateway" / "certificates"
PATIENCE_S = 60.0
SILENT = 1000


def tls(own="one", ca="one"):
    return TlsFiles(ca=PEM / f"{ca}.pem", cert=PEM / f"{own}.pem", key=PEM / f"{own}.key")


class Server:
    def __init__(self, context=None):
        (sock,) = listening_sockets("127.0.0.1", 0)
        self.address = sock.getsockname()
        source = context if callable(context) else lambda: context
        self._server = GreetingServer([sock], self._consider, source)

    def _consider(self, message, opening):
        if message.version == "bad":
            return Refused("no")
        opening.send(welcome(message.protocol))
        opening.transport.close()
        return None

    async def greet(self, context=None, version="1"):
        loop, opening = asyncio.get_running_loop(), Opening()
        name = None if context is None else "localhost"
        await loop.create_connection(lambda: opening, *self.address, ssl=context, server_hostname=name)
        opening.send(hello(7, version, None))
        try:
            return await opening.receive()
        finally:
            opening.abort()

    async def close(self):
        await self._server.close()


def play(scenario, context=None):
    async def inner():
        server = Server(context)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await scenario(server)
        finally:
            await server.close()

    uvloop.run(inner())


@functools.cache
def client_hello():
    out = ssl.MemoryBIO()
    side = tls().client_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        side.do_handshake()
    return out.read()


def has_ended(sock):
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@pytest.fixture
def descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(4096, before[1])), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("is_secret", [False, True], ids=["plain", "TLS"])
def test_who_is_silent_keeps_nobody_out(is_secret):
    """TLS handshakes that do not go on count like connections that say nothing."""

    async def scenario(server):
        with contextlib.ExitStack() as stack:
            silent = []
            for _ in range(SILENT):
                silent.append(stack.enter_context(socket.create_connection(server.address)))
                silent[-1].sendall(client_hello() if is_secret else b"\x10")
                silent[-1].setblocking(False)
                await asyncio.sleep(0)
            found = await server.greet(tls().client_context() if is_secret else None)
            assert isinstance(found, Welcome)
            while sum(map(has_ended, silent)) < SILENT - accepting.MOST_GREETINGS:
                await asyncio.sleep(0.01)
            assert not all(map(has_ended, silent))

    play(scenario, tls().server_context() if is_secret else None)


@pytest.mark.parametrize("offered", ["other", ""], ids=["strange certificate", "no certificate"])
def test_a_refused_certificate_is_logged_with_its_reason_and_address(offered, caplog):
    context = tls(offered).client_context() if offered else ssl.create_default_context(cafile=PEM / "one.pem")

    async def scenario(server):
        with contextlib.suppress(Exception):
            await server.greet(context)
        while "peer_refused" not in caplog.text:
            await asyncio.sleep(0.001)

    play(scenario, tls().server_context())
    (line,) = [one.getMessage() for one in caplog.records if "peer_refused" in one.getMessage()]
    assert line.startswith("peer_refused address=127.0.0.1:")
    assert ("certificate verify failed" if offered else "did not return a certificate") in line


def test_what_a_stranger_says_reaches_the_log_without_its_control_characters(caplog):
    async def scenario(server):
        body = msgspec.msgpack.encode({"type": "\x1b[2J\nforged"})
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        assert b"refused" in await reader.read()
        writer.close()

    play(scenario)
    (line,) = [one.getMessage() for one in caplog.records if "peer_refused" in one.getMessage()]
    assert "x1b[2J" in line
    assert "forged" in line
    assert line.isprintable()


def test_a_refusal_is_told_and_logged(caplog):
    async def scenario(server):
        assert await server.greet(version="bad") == Refused("no")

    play(scenario)
    assert "reason='no'" in caplog.text


def test_certificates_and_a_ca_that_are_renewed_count_from_the_next_handshake(tmp_path, caplog):
    """A certificate of the old CA is refused once the new one has been read. Files that do not fit change
    nothing."""
    paths = {"ca": tmp_path / "ca.pem", "cert": tmp_path / "cert.pem", "key": tmp_path / "cert.key"}

    def install(name, key=None):
        shutil.copyfile(PEM / f"{name}.pem", paths["ca"])
        shutil.copyfile(PEM / f"{name}.pem", paths["cert"])
        shutil.copyfile(PEM / f"{key or name}.key", paths["key"])

    async def is_let_in(server, name):
        try:
            found = await server.greet(tls(name, name).client_context())
        except (ssl.SSLError, OSError, PeerLostError):
            return False
        return isinstance(found, Welcome)

    async def scenario(server):
        assert [await is_let_in(server, name) for name in ("one", "other")] == [True, False]
        install("other")
        assert [await is_let_in(server, name) for name in ("one", "other")] == [False, True]
        install("one", "other")
        assert [await is_let_in(server, name) for name in ("one", "other")] == [False, True]
        assert caplog.text.count("does not belong to the first certificate") == 1

    install("one")
    play(scenario, MutualTls(TlsFiles(**paths), TlsFiles.server_context).context)


def test_who_opens_connections_has_its_renewed_certificate_too(tmp_path):
    paths = {"ca": PEM / "one.pem", "cert": tmp_path / "cert.pem", "key": tmp_path / "cert.key"}
    for name in ("pem", "key"):
        shutil.copyfile(PEM / f"other.{name}", tmp_path / f"cert.{name}")
    client = MutualTls(TlsFiles(**paths), TlsFiles.client_context)

    async def scenario(server):
        with pytest.raises((ssl.SSLError, OSError, PeerLostError)):
            await server.greet(client.context())
        for name in ("pem", "key"):
            shutil.copyfile(PEM / f"one.{name}", tmp_path / f"cert.{name}")
        assert isinstance(await server.greet(client.context()), Welcome)

    play(scenario, tls().server_context())
