"""Attaching of hosts to a group of ranks: both sides prove that they know the group's secret, then compare
what has to be the same on all of them.

Messages are JSON behind their length. Nothing is parsed of a peer that has not proved itself; what follows
the proof is neither encrypted nor signed, so the hosts need a network that nobody else can write to.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from firelane import env, storage
from firelane.engine_config import ExecutorConfig, HostsConfig
from firelane.errors import MachineError, UsageError
from firelane.link.tcp import watch_peer

MAGIC = b"firelane ranks 1"
NONCE_BYTES = 32
REFUSAL = bytes(hashlib.sha256().digest_size)
PROOF_S = 10.0
"""For a peer to prove itself."""
RETRY_S = 0.05
MOST_MESSAGE_BYTES = 1 << 20
DEAD_S = 10
"""Until a peer that acknowledges nothing counts as gone."""
LENGTH = struct.Struct("<I")
MessageT = TypeVar("MessageT")


class LinkBrokenError(MachineError):
    """A peer that has gone, or was never there."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """All that a host says of itself. model: a digest of its checkpoint's content; program: of what it makes
    of it; options: as they are given; port: where it takes connections from ranks of other hosts."""

    version: str
    host: int
    hosts: int
    options: dict[str, str]
    model: str
    program: str
    isa: str
    available_bytes: int
    port: int = 0


class WireHello(msgspec.Struct, frozen=True, kw_only=True):
    """A connection's wire and group."""

    group: str
    wire: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    why: str


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """group: a name that this life of the group alone has."""

    group: str


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that all hosts have been waiting for, and where each of them takes connections."""

    limits: dict[str, int]
    link_sizes: dict[str, int]
    addresses: list[tuple[str, int]]


class Loaded(msgspec.Struct, frozen=True, tag=True):
    weights_bytes: int
    kv_bytes: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The reason for which a host leaves the group."""

    why: str


class HostSocket:
    """A connection between two hosts that have proved themselves. Owns the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        watch_peer(sock, DEAD_S)

    @property
    def address(self) -> str:
        """The peer's."""
        with suppress(OSError):
            return self.sock.getpeername()[0]
        return "an unknown address"

    def send(self, message: msgspec.Struct) -> None:
        self.send_bytes(_framed(message))

    def send_bytes(self, data: bytes) -> None:
        """Raises LinkBrokenError, like all that follow."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise LinkBrokenError(f"{self.address}: {error.strerror or error}") from error

    def receive(self, kind: type[MessageT]) -> MessageT:
        (length,) = LENGTH.unpack(self.receive_bytes(LENGTH.size))
        if length > MOST_MESSAGE_BYTES:
            raise LinkBrokenError(f"{self.address} sends what no host of a group would")
        try:
            return msgspec.json.decode(self.receive_bytes(length), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LinkBrokenError(f"{self.address} sends what no host of a group would: {error}") from error

    def receive_bytes(self, count: int) -> bytearray:
        data = bytearray(count)
        view, have = memoryview(data), 0
        while have < count:
            try:
                more = self.sock.recv_into(view[have:])
            except OSError as error:
                raise LinkBrokenError(f"{self.address}: {error.strerror or error}") from error
            if not more:
                raise LinkBrokenError(f"{self.address} has closed the connection")
            have += more
        return data

    @property
    def has_news(self) -> bool:
        """Whether the peer has said something, or is gone."""
        return bool(select.select([self.sock], [], [], 0)[0])

    def close(self) -> None:
        """Idempotent. Whoever waits for the peer waits no longer."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Listener:
    """The place where one host takes connections of others. stranger: address of the last peer that had
    another secret."""

    def __init__(self, address: str, port: int, key: bytes) -> None:
        """port: 0 takes a free one. Raises MachineError."""
        self._key, self.stranger = key, ""
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            self._sock = socket.create_server((address, port), family=family, backlog=64)
        except OSError as error:
            raise MachineError(
                f"--master-addr {address}:{port}: unable to listen there ({error.strerror or error}); it "
                "has to be an address of host 0, and the port free"
            ) from error
        self.port: int = self._sock.getsockname()[1]

    def accept(self, deadline_s: float) -> HostSocket:
        """The next peer that proves itself. deadline_s: on the monotonic clock. Raises TimeoutError."""
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._sock.settimeout(left_s)
            sock, peer = self._sock.accept()
            try:
                return _proved(sock, self._key, leads=True)
            except LinkBrokenError:
                sock.close()
            except UsageError:
                self.stranger = peer[0]
                sock.close()

    def close(self) -> None:
        self._sock.close()


def connect(
    address: str, port: int, key: bytes, deadline_s: float, check: Callable[[], None] = lambda: None
) -> HostSocket:
    """A connection to a Listener. check: called now and then, raises what ends the wait. Raises UsageError
    where the peer has another secret, LinkBrokenError where nobody is there before the deadline."""
    why: Exception | str = "nobody was there"
    while (left_s := deadline_s - time.monotonic()) > 0:
        sock = None
        try:
            sock = socket.create_connection((address, port), timeout=min(left_s, PROOF_S))
            return _proved(sock, key, leads=False)
        except (OSError, LinkBrokenError) as error:
            why = error
            if sock is not None:
                sock.close()
            check()
            time.sleep(min(RETRY_S, left_s))
        except UsageError:
            if sock is not None:
                sock.close()
            raise
    raise LinkBrokenError(f"unable to reach {address}:{port} ({why})")


def _proved(sock: socket.socket, key: bytes, *, leads: bool) -> HostSocket:
    """The peer's connection once both sides have shown that they know the key."""
    sock.settimeout(PROOF_S)
    made, own = HostSocket(sock), secrets.token_bytes(NONCE_BYTES)
    made.send_bytes(MAGIC + own)
    if bytes(made.receive_bytes(len(MAGIC))) != MAGIC:
        raise LinkBrokenError(f"{made.address} is no host of a group of this version")
    theirs = bytes(made.receive_bytes(NONCE_BYTES))
    nonces = own + theirs if leads else theirs + own

    def proof(role: bytes) -> bytes:
        return hmac.new(key, role + nonces, hashlib.sha256).digest()

    if not leads:
        made.send_bytes(proof(b"follows"))
    found = made.receive_bytes(len(REFUSAL))
    if not hmac.compare_digest(found, proof(b"follows" if leads else b"leads")):
        if leads:
            made.send_bytes(REFUSAL)
        raise UsageError(
            f"{made.address} has another secret: give all hosts the same --cluster-key-file, or "
            "FIRELANE_CLUSTER_KEY"
        )
    if leads:
        made.send_bytes(proof(b"leads"))
    sock.settimeout(None)
    return made


def cluster_key(hosts: HostsConfig, settings: env.Environment) -> bytes:
    """The secret of the group: may be empty where all hosts are this machine. Raises UsageError."""
    if hosts.key_file is None and not settings.cluster_key and is_loopback(hosts.address):
        return b""
    return storage.cluster_key(hosts.key_file, settings.cluster_key)


def is_loopback(address: str) -> bool:
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(place[4][0]).is_loopback for place in found)


def compared_options(config: ExecutorConfig) -> dict[str, str]:
    """Options that have to be the same on all hosts; sizes of steps and of the cache are those of host 0."""
    sizes = {
        f"--{kind}-parallel-size": getattr(config, f"{kind}_parallel_size")
        for kind in ("tensor", "expert", "pipeline")
    }
    others = {
        f"--{name.replace('_', '-')}": getattr(config, name)
        for name in ("weights", "dtype", "activation_dtype", "kv_cache_dtype")
    }
    return {name: str(value) for name, value in (sizes | others).items()}


_SAME = {
    "version": "runs Firelane {theirs}, host 0 {ours}: install the same version on all hosts",
    "hosts": "was started with --nnodes {theirs}, host 0 with {ours}: give all hosts the same",
    "model": "has another model than host 0: config.json or weights differ; give all hosts the same files",
    "isa": "computes with {theirs}, host 0 with {ours}: sums would differ; set FIRELANE_ISA to one that all "
    "hosts have",
    "program": "makes another program of the model than host 0: give all hosts the same --max-model-len",
}
"""Fields of Hello that have to be the same on all hosts, and what to say where they are not."""


def difference(leader: Hello, other: Hello) -> str:
    """The first thing that is not the same on both, and what to do; "" where all is."""
    if other.version == leader.version and other.hosts == leader.hosts:
        if not 0 < other.host < leader.hosts:
            return f"--node-rank {other.host}: that of another host than the first is 1 to {leader.hosts - 1}"
        for option, value in leader.options.items():
            if other.options.get(option) != value:
                return (
                    f"host {other.host} was started with {option} {other.options.get(option)}, host 0 with "
                    f"{value}: give all hosts the same"
                )
    for name, text in _SAME.items():
        ours, theirs = getattr(leader, name), getattr(other, name)
        if ours != theirs:
            return f"host {other.host} {text.format(ours=ours, theirs=theirs)}"
    return ""


def _framed(message: msgspec.Struct) -> bytes:
    data = msgspec.json.encode(message)
    return LENGTH.pack(len(data)) + data
