"""Engines of two servers, connected over TCP by their parents."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec
import pytest

from firelane.cli import build_parser
from firelane.engine_config import HostsConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.kv.transfer.peers import PeerTransfer
from firelane.link.packets import send
from firelane.node import remote_peers
from firelane.node.peer_connections import PeerConnections
from firelane.node.remote_peers import CipherMode, RemotePeers, RemotePeersConfig, is_private
from firelane.server.engine_shares import EngineOptions
from firelane.server.options import router as router_options
from firelane.server.options.engine import engine_config
from firelane.server.options.router import with_routers
from firelane.wire.peers import PeerConnection, PeerMissing, PeerReady, PeerSought, receive

KEY = b"0123456789abcdef"
SOON_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


class Server:
    """One engine's place, and the engine's end of its socket."""

    def __init__(self, key: bytes = KEY, cipher: CipherMode = "auto") -> None:
        config = RemotePeersConfig("127.0.0.1", free_port(), key, cipher)
        self.address = config.address(0)
        self.connections = PeerConnections(connects=False)
        self.connections.reach(RemotePeers(config, 1))
        self.sock = self.connections.join()

    async def receive(self):
        return await asyncio.wait_for(asyncio.to_thread(receive, self.sock), SOON_S)

    def close(self) -> None:
        self.connections.close()
        self.sock.close()


def run(test: Callable) -> None:
    asyncio.run(asyncio.wait_for(test(), SOON_S))


def test_each_engine_gets_an_end_of_the_connection():
    async def test():
        source, reader = Server(), Server()
        send(source.sock, PeerReady("source"))
        send(reader.sock, PeerReady("reader"))
        await asyncio.sleep(0)
        ends = None
        while ends is None:  # the source may not have been heard yet: its connection is then closed
            send(reader.sock, PeerSought("source", source.address))
            message, (fd,) = await reader.receive()
            assert message == PeerConnection("reader", "source", KEY)
            with socket.socket(fileno=fd) as theirs:
                message, (own,) = await source.receive()
                assert message == PeerConnection("source", "", KEY)
                with socket.socket(fileno=own) as ours:
                    ours.sendall(b"pages")
                    assert await asyncio.to_thread(theirs.recv, 5) == b"pages"
                    ends = theirs, ours
        source.close()
        reader.close()

    run(test)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "8.8.8.8:80", "router.example:80", "127.0.0.1:port", ""])
def test_an_address_that_cannot_be_used_is_answered(address):
    async def test():
        reader = Server()
        for _ in range(2):  # the second time it is not tried again
            send(reader.sock, PeerSought("source", address))
            assert await reader.receive() == (PeerMissing("source"), [])
        reader.close()

    run(test)


def test_an_address_that_never_answers_is_not_tried_again_at_once(monkeypatch):
    """Regardless of the time that the attempt has taken."""
    tried, attempt_s = [], SOON_S / 2

    async def nowhere(address):
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + attempt_s)
        tried.append(address)
        raise TimeoutError

    monkeypatch.setattr(remote_peers, "RETRY_S", attempt_s - 20)
    monkeypatch.setattr(remote_peers, "_connected", nowhere)

    async def test():
        reader = Server()
        for _ in range(2):
            send(reader.sock, PeerSought("source", "10.0.0.1:1"))
            assert await reader.receive() == (PeerMissing("source"), [])
        reader.close()

    run(test)
    assert tried == ["10.0.0.1:1"]


def test_without_other_servers_nobody_is_sought():
    async def test():
        connections = PeerConnections()
        sock = connections.join()
        send(sock, PeerSought("source", "127.0.0.1:1"))
        assert await asyncio.to_thread(receive, sock) == (PeerMissing("source"), [])
        connections.close()
        sock.close()

    run(test)


def test_a_port_that_is_taken_is_told():
    async def test():
        with (
            socket.create_server(("127.0.0.1", 0)) as taken,
            pytest.raises(UsageError, match="--kv-transfer-address"),
        ):
            RemotePeers(RemotePeersConfig("127.0.0.1", taken.getsockname()[1], KEY), 1)

    run(test)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.1.2.3", True),
        ("127.0.0.1", True),
        ("100.64.0.7", True),
        ("fd00::1", True),
        ("8.8.8.8", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("host", False),
    ],
)
def test_private_addresses(host, expected):
    assert is_private(host) is expected


def test_pages_have_a_cipher_between_addresses_of_two_hosts_unless_the_option_says_else():
    async def test():
        for mode, origin, expected in (
            ("auto", "127.0.0.1", False),
            ("auto", "127.0.0.2", True),
            ("on", "127.0.0.1", True),
            ("off", "127.0.0.2", False),
        ):
            server = Server(cipher=mode)
            send(server.sock, PeerReady("source"))
            await asyncio.sleep(0.05)
            host, port = server.address.split(":")
            with socket.create_connection((host, int(port)), source_address=(origin, 0)):
                message, (fd,) = await server.receive()
            os.close(fd)
            assert message == PeerConnection("source", "", KEY, expected), (mode, origin)
            server.close()

    run(test)


def settled(transfer: PeerTransfer):
    return [(one.ticket, one.outcome) for one in transfer.poll()]


def test_pulls_wait_for_the_peer_that_is_sought():
    sought = []
    transfer = PeerTransfer(None, on_sought=lambda peer, address: sought.append((peer, address)))
    transfer.seek("a", "10.0.0.1:1")
    transfer.seek("a", "10.0.0.1:1")
    first = transfer.pull("a", [], [], float("inf"))
    late = transfer.pull("b", [], [], float("inf"))
    assert sought == [("a", "10.0.0.1:1")]
    assert settled(transfer) == [(late, "lost")]
    transfer.give_up("a")
    assert settled(transfer) == [(first, "lost")]
    transfer.seek("a", "10.0.0.1:1")
    second = transfer.pull("a", [], [], 0.0)
    assert settled(transfer) == [(second, "lost")]  # nobody has answered in its time


def options(tmp_path, *words: str, key: str = "k" * 16, **changes):
    values = vars(build_parser().parse_args(["serve", "MODEL", *words]))
    settings = Environment(cache_dir=tmp_path, cluster_key=key)
    engine = engine_config({"backend": "cpu", **values}, tmp_path, settings)
    engine = msgspec.structs.replace(engine, **changes)
    return with_routers(values, EngineOptions(engine=engine, replicas=2), settings)


def test_pages_by_nixl_lie_in_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(router_options, "is_installed", lambda: True)
    made = options(tmp_path, "--kv-transfer-address", "10.0.0.1:5600", "--kv-transport", "nixl")
    assert [(c.kv_transport, c.kv_cache_memory) for c in made.configs()] == [("nixl", "shared")] * 2
    made = options(tmp_path, "--kv-transfer-address", "10.0.0.1:5600")
    assert {c.kv_transport for c in made.configs()} == {"tcp"}


def test_nixl_has_to_be_installed_and_to_have_an_address(tmp_path, monkeypatch):
    monkeypatch.setattr(router_options, "is_installed", lambda: False)
    with pytest.raises(UsageError, match=r"pip install 'firelane\[rdma\]'"):
        options(tmp_path, "--kv-transfer-address", "10.0.0.1:5600", "--kv-transport", "nixl")
    with pytest.raises(UsageError, match="give --kv-transfer-address"):
        options(tmp_path, "--kv-transport", "nixl")


def test_the_package_of_the_cipher_has_to_be_there_where_pages_leave_the_host(tmp_path, monkeypatch):
    monkeypatch.setattr(router_options, "cipher_is_installed", lambda: False)
    for words in (["10.0.0.1:5600"], ["127.0.0.1:5600", "--kv-transfer-cipher", "on"]):
        with pytest.raises(UsageError, match=r"pip install 'firelane\[encryption\]', or give .*-cipher off"):
            options(tmp_path, "--kv-transfer-address", *words)
    for words in (["127.0.0.1:5600"], ["10.0.0.1:5600", "--kv-transfer-cipher", "off"]):
        assert options(tmp_path, "--kv-transfer-address", *words).remote_peers is not None


def test_the_cipher_reaches_the_servers_way_of_pages_and_nixl_has_none(tmp_path):
    for mode in ("auto", "on", "off"):
        words = ["--kv-transfer-address", "10.0.0.1:5600", "--kv-transfer-cipher", mode]
        assert options(tmp_path, *words).remote_peers.cipher == mode
    words = ["--kv-transfer-cipher", "on", "--kv-transport", "nixl"]
    with pytest.raises(UsageError, match="NIXL has no cipher"):
        options(tmp_path, "--kv-transfer-address", "10.0.0.1:5600", *words)


def test_each_engine_has_a_port(tmp_path):
    made = options(tmp_path, "--kv-transfer-address", "10.0.0.1:5600")
    assert made.remote_peers == RemotePeersConfig("10.0.0.1", 5600, b"k" * 16)
    assert [c.kv_transfer_address for c in made.configs()] == ["10.0.0.1:5600", "10.0.0.1:5601"]
    made = options(tmp_path, "--kv-transfer-address", "[fd00::1]:5600")
    assert made.configs()[1].kv_transfer_address == "[fd00::1]:5601"
    assert options(tmp_path).remote_peers is None


@pytest.mark.parametrize(
    ("words", "changes", "why"),
    [
        (["8.8.8.8:1"], {}, "private network"),
        (["pod:5600"], {}, "private network"),
        (["10.0.0.1"], {}, "IP:PORT"),
        (["10.0.0.1:65535"], {}, "a port from 1 to 65534"),
        (["10.0.0.1:5600"], {"key": "short"}, "FIRELANE_CLUSTER_KEY has 5 bytes"),
        (["10.0.0.1:5600", "--take-over"], {}, "--take-over"),
        (["10.0.0.1:5600"], {"prefix_cache": False}, "--no-prefix-cache"),
        (["10.0.0.1:5600"], {"hosts": HostsConfig(count=2, own=0, address="h", port=1)}, "--nnodes 2"),
    ],
)
def test_what_is_refused(tmp_path, words, changes, why):
    with pytest.raises(UsageError, match=why):
        options(tmp_path, "--kv-transfer-address", *words, **changes)
