"""Hosts on one machine: network namespaces on a bridge, between any two of which packets can be lost. Needs
root, `ip` and `tc` (iproute2), and a kernel with cls_bpf."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address

BRIDGE = f"flbr{os.getpid()}"
FIRST = IPv4Address("10.77.0.1") + 256 * (os.getpid() % 256)
"""The bridge has this address, which clients ask from, and the hosts have those behind it. Several networks
may run at a time."""
ETHERTYPE, SOURCE = 12, 26
"""Offsets in a frame with IPv4."""
RANDOM = 0xFFFFF000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: a 32-bit random number in place of a word of the packet (linux/filter.h)."""
LOAD_HALF, LOAD_WORD, IF_EQUAL, IF_GREATER_EQUAL, RETURN = 0x28, 0x20, 0x15, 0x35, 0x06
PASS_ON, DROP = 0xFFFFFFFF, 2
"""TC_ACT_UNSPEC, TC_ACT_SHOT."""


class Network:
    """Owns the bridge and one namespace for each name; a context manager that removes them."""

    def __init__(self, names: Sequence[str]) -> None:
        """Raises subprocess.CalledProcessError where the system does not allow it."""
        self._names = list(names)
        self._turns = itertools.count(1)
        self._stack = contextlib.ExitStack()
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        self._stack.callback(_run, "ip", "link", "del", BRIDGE)
        _run("ip", "addr", "add", f"{FIRST}/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        for name in self._names:
            self._add(name)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def address(self, name: str) -> str:
        return str(FIRST + 1 + self._names.index(name))

    def prefix(self, name: str) -> list[str]:
        """Words before a command that is to run on this host."""
        return ["ip", "netns", "exec", _namespace(name)]

    @contextlib.contextmanager
    def one_way(self, source: str, target: str, share: float = 1.0) -> Iterator[None]:
        """Meanwhile this share of the packets from one host to another is lost."""
        program = _program(int(FIRST + 1 + self._names.index(source)), share)
        hook = ("dev", _port(target), "egress", "prio", str(next(self._turns)))
        _run("tc", "filter", "add", *hook, "bpf", "bytecode", program, "da")
        try:
            yield
        finally:
            _run("tc", "filter", "del", *hook)

    @contextlib.contextmanager
    def cut(self, one: str, other: str, share: float = 1.0) -> Iterator[None]:
        """`one_way`, both ways."""
        with self.one_way(one, other, share), self.one_way(other, one, share):
            yield

    def _add(self, name: str) -> None:
        space, port = _namespace(name), _port(name)
        _run("ip", "netns", "add", space)
        self._stack.callback(_run, "ip", "netns", "del", space)
        inner = ("peer", "name", "eth0", "netns", space)
        _run("ip", "link", "add", port, "type", "veth", *inner)
        self._stack.callback(_run, "ip", "link", "del", port)
        # One packet of the wire for each of the filter: not 64 KiB at once.
        _run("ip", "-n", space, "link", "set", "eth0", "gso_max_segs", "1")
        _run("ip", "link", "set", port, "master", BRIDGE, "up")
        _run("tc", "qdisc", "add", "dev", port, "clsact")
        _run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", space, "link", "set", device, "up")


def _namespace(name: str) -> str:
    return f"firelane-{os.getpid()}-{name}"


def _port(name: str) -> str:
    return f"fl{os.getpid()}{name}"


def _program(source: int, share: float) -> str:
    """Classic BPF: drop this share of the IPv4 packets of this source."""
    lines = [
        (LOAD_HALF, 0, 0, ETHERTYPE),
        (IF_EQUAL, 0, 5, 0x0800),
        (LOAD_WORD, 0, 0, SOURCE),
        (IF_EQUAL, 0, 3, source),
        (LOAD_WORD, 0, 0, RANDOM),
        (IF_GREATER_EQUAL, 1, 0, min(int(share * 2**32), 2**32 - 1)),
        (RETURN, 0, 0, DROP),
        (RETURN, 0, 0, PASS_ON),
    ]
    return ",".join([str(len(lines)), *(" ".join(map(str, line)) for line in lines)])


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
