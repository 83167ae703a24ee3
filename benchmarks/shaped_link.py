"""A server behind a link of a given rate, on one machine: a network namespace whose way out a token bucket
limits. Needs root, `ip` and `tc` (iproute2), and a kernel with sch_tbf."""

from __future__ import annotations

import contextlib
import os
import subprocess
from ipaddress import IPv4Address

NETWORK = IPv4Address("10.78.0.0") + 4 * (os.getpid() % 8192)
BURST_BYTES = 1 << 20
QUEUE_MS = 20
"""Packets are dropped when they would wait longer than this for the bucket."""


class ShapedLink:
    """Owns the namespace; a context manager that removes it."""

    def __init__(self) -> None:
        """Raises subprocess.CalledProcessError where the system does not allow it."""
        self._name, self._port = f"firelane-store-{os.getpid()}", f"fls{os.getpid()}"
        self._stack = contextlib.ExitStack()
        self._run("ip", "netns", "add", self._name)
        self._stack.callback(self._run, "ip", "netns", "del", self._name)
        inner = ("peer", "name", "eth0", "netns", self._name)
        self._run("ip", "link", "add", self._port, "type", "veth", *inner)
        self._run("ip", "addr", "add", f"{NETWORK + 1}/30", "dev", self._port)
        self._run("ip", "link", "set", self._port, "up")
        self._run("ip", "-n", self._name, "addr", "add", f"{self.address}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._run("ip", "-n", self._name, "link", "set", device, "up")

    def __enter__(self) -> ShapedLink:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """The address of servers behind the link."""
        return str(NETWORK + 2)

    @property
    def prefix(self) -> list[str]:
        """Words before a command that is to run there."""
        return ["ip", "netns", "exec", self._name]

    def limit(self, rate: float | None) -> None:
        """Bytes a second that come from there, the packets' headers with them; None: all that the processors
        can do."""
        tc = ("tc", "-n", self._name, "qdisc")
        if rate is None:
            with contextlib.suppress(subprocess.CalledProcessError):  # there was no limit
                self._run(*tc, "del", "dev", "eth0", "root")
            return
        bucket = ("burst", str(BURST_BYTES), "latency", f"{QUEUE_MS}ms")
        self._run(*tc, "replace", "dev", "eth0", "root", "tbf", "rate", f"{8 * rate:.0f}bit", *bucket)

    @staticmethod
    def _run(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True)
