"""Connections between engines of different servers, over TCP: the engines have no network, so connections are
made and taken here and passed to them. Whether the other end may have pages, or is believed, is settled by
the engines themselves, who prove to each other that they have the key of the cluster."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from contextlib import suppress
from importlib.util import find_spec
from typing import Literal, NamedTuple

from firelane.errors import PeerLostError, UsageError
from firelane.link.packets import send
from firelane.link.tcp import watch_peer
from firelane.wire.peers import PeerConnection, PeerMessage, PeerMissing

log = logging.getLogger(__name__)
CONNECT_S = 2.0
RETRY_S = 1.0
"""For which an address where nobody was is not tried again."""
MOST_FAILED = 1024
DEAD_S = 10
"""Until a peer that acknowledges nothing counts as gone."""
BACKLOG = 64
CipherMode = Literal["auto", "on", "off"]
"""auto: pages travel under a cipher between hosts, without one between two addresses of this host. off: only
where the other end asks for it."""


class RemotePeersConfig(NamedTuple):
    """Address of the first engine that gives pages; others have the ports behind. key: of the cluster."""

    host: str
    port: int
    key: bytes
    cipher: CipherMode = "auto"

    def address(self, place: int) -> str:
        """The address of the engine at this place."""
        return format_address(self.host, self.port + place)


class RemotePeers:
    """Owns one listening socket for each engine's place. Used by the event loop."""

    def __init__(self, config: RemotePeersConfig, places: int) -> None:
        """Raises UsageError where an address cannot be listened on."""
        self._config = config
        self._engines: dict[int, socket.socket] = {}
        """The socket to the engine that has each place now."""
        self._failed: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        try:
            for place in range(places):
                self._listeners.append(_listener(config.host, config.port + place))
        except UsageError:
            self.close()
            raise
        loop = asyncio.get_running_loop()
        for place, listener in enumerate(self._listeners):
            loop.add_reader(listener, self._accept, place)

    def close(self) -> None:
        """Idempotent."""
        for task in self._tasks:
            task.cancel()
        for listener in self._listeners:
            if listener.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listener)
                listener.close()

    def joined(self, place: int, engine: socket.socket) -> None:
        """An engine is there; an older one in its place gives no more pages."""
        self._engines[place] = engine

    def left(self, engine: socket.socket) -> None:
        self._engines = {place: sock for place, sock in self._engines.items() if sock is not engine}

    def seek(self, engine: socket.socket, engine_id: str, address: str) -> None:
        """The engine at this socket wants pages of another server's engine."""
        work = self._connect(engine, engine_id, address)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, engine: socket.socket, engine_id: str, address: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._failed.get(address, 0.0) > loop.time():
                raise OSError("nobody was there a moment ago")
            sock = await asyncio.wait_for(_connected(address), CONNECT_S)
        except (OSError, ValueError, TimeoutError) as error:
            log.warning("peer_not_reached address=%s error=%r", address[:80], str(error) or "too slow")
            self._note_failed(address, loop.time())
            _tell(engine, PeerMissing(engine_id))
            return
        with sock:
            connection = PeerConnection("reader", engine_id, self._config.key, self._ciphers(sock))
            _tell(engine, connection, sock)

    def _note_failed(self, address: str, now_s: float) -> None:
        if len(self._failed) >= MOST_FAILED:
            self._failed.clear()
        if self._failed.get(address, 0.0) <= now_s:
            self._failed[address] = now_s + RETRY_S

    def _accept(self, place: int) -> None:
        try:
            sock, _ = self._listeners[place].accept()
        except OSError:
            return
        with sock:
            engine = self._engines.get(place)
            if engine is not None:
                _prepare(sock)
                connection = PeerConnection("source", "", self._config.key, self._ciphers(sock))
                _tell(engine, connection, sock)

    def _ciphers(self, sock: socket.socket) -> bool:
        """Whether pages travel under a cipher over this connection."""
        mode = self._config.cipher
        return mode == "on" or (mode == "auto" and not _is_of_one_host(sock))


def cipher_is_installed() -> bool:
    return find_spec("cryptography") is not None


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_private(host: str) -> bool:
    """Whether this is an IP address that the internet does not route: only those may ask for pages."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (address.is_global or address.is_unspecified or address.is_multicast)


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


async def _connected(address: str) -> socket.socket:
    """Raises OSError, and ValueError for what is no private address."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not is_private(host):
        raise ValueError("not an address of a private network")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    except BaseException:
        sock.close()
        raise
    _prepare(sock)
    return sock


def _is_of_one_host(sock: socket.socket) -> bool:
    """Whether both ends have the same address. Where the peer has gone already, it does not matter."""
    with suppress(OSError):
        return sock.getsockname()[0] == sock.getpeername()[0]
    return False


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(True)
    watch_peer(sock, DEAD_S)


def _tell(engine: socket.socket, message: PeerMessage, passed: socket.socket | None = None) -> None:
    """An engine that has gone is seen by its socket's end."""
    with suppress(PeerLostError):
        send(engine, message, () if passed is None else (passed.fileno(),))


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"--kv-transfer-address {format_address(host, port)}: unable to listen there "
            f"({error.strerror or error}); it has to be an address of this machine, and the port free"
        ) from error
    sock.setblocking(False)
    return sock
