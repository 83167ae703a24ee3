"""Attaching of hosts to a group of ranks: both sides prove that they know the group's secret (link.proof),
then compare what has to be the same on all of them.

What follows the proof is neither encrypted nor signed, so the hosts need a network that nobody else can write
to.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable

import msgspec

from firelane import env, storage
from firelane.engine_config import ExecutorConfig, HostsConfig
from firelane.errors import MachineError, PeerLostError, UsageError
from firelane.link.greeting import Challenge, facts_of
from firelane.link.line import Line
from firelane.link.proof import Secret, accept, admit, answer, greet
from firelane.link.tcp import watch_peer

PROTOCOL = 2
PROOF_S = 10.0
"""For a peer to prove itself."""
SECRET_OPTIONS = "--cluster-key-file, or FIRELANE_CLUSTER_KEY"
RETRY_S = 0.05
DEAD_S = 10
"""Until a peer that acknowledges nothing counts as gone."""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
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


class WireFacts(msgspec.Struct, frozen=True):
    """A connection's wire and group; both are "" where a host attaches."""

    group: str = ""
    wire: str = ""


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


class Listener:
    """The place where one host takes connections of others. refusal: of the last peer that was refused, in
    words for people."""

    def __init__(self, address: str, port: int, key: bytes) -> None:
        """port: 0 takes a free one. Raises MachineError."""
        self._secret, self.refusal = Secret(key, PROTOCOL), ""
        try:
            family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            self._sock = socket.create_server((address, port), family=family, backlog=64)
        except OSError as error:
            raise MachineError(
                f"--master-addr {address}:{port}: unable to listen there ({error.strerror or error}); it "
                "has to be an address of host 0, and the port free"
            ) from error
        self.port: int = self._sock.getsockname()[1]

    def accept(self, deadline_s: float) -> tuple[Line, WireFacts]:
        """The next peer that proves itself, which is named by its address. deadline_s: on the monotonic
        clock. Raises TimeoutError."""
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._sock.settimeout(left_s)
            sock, peer = self._sock.accept()
            line = _line(sock, peer[0])
            try:
                guest = admit(line, self._secret, None)
                wire = facts_of(guest.hello, WireFacts)
                accept(line, self._secret, guest, None)
            except (PeerLostError, TimeoutError) as error:
                line.close()
                if isinstance(error, PeerLostError) and not error.is_passing:
                    self.refusal = f"; one at {peer[0]} was refused: {error} ({SECRET_OPTIONS})"
                continue
            line.deadline_s = None
            return line, wire

    def close(self) -> None:
        self._sock.close()


def connect(
    place: tuple[str, int],
    key: bytes,
    deadline_s: float,
    wire: WireFacts,
    check: Callable[[], None] = lambda: None,
) -> Line:
    """A connection to a Listener, named by its address. check: called now and then, raises what ends the
    wait. Raises UsageError where the peer refuses this host or has another secret, PeerLostError where nobody
    is there before the deadline."""
    why: Exception | str = "nobody was there"
    while (left_s := deadline_s - time.monotonic()) > 0:
        line = None
        try:
            line = _line(socket.create_connection(place, timeout=min(left_s, PROOF_S)), place[0])
            secret = Secret(key, PROTOCOL)
            answer(line, secret, greet(line, secret, line.receive(Challenge), wire))
            line.deadline_s = None
            return line
        except (OSError, PeerLostError) as error:
            why = error
            if line is not None:
                line.close()
            if isinstance(error, PeerLostError) and not error.is_passing:
                raise UsageError(f"{place[0]}: {error} ({SECRET_OPTIONS})") from error
            check()
            time.sleep(min(RETRY_S, left_s))
    raise PeerLostError(f"unable to reach {place[0]}:{place[1]} ({why})")


def _line(sock: socket.socket, address: str) -> Line:
    """For a peer that is about to prove itself."""
    watch_peer(sock, DEAD_S)
    line = Line(sock, address)
    line.deadline_s = time.monotonic() + PROOF_S
    return line


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


def difference(leader: HostFacts, other: HostFacts) -> str:
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
