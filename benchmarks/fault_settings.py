"""Servers under test, each with what can go wrong in it:

roles       one server, two engines for prefill and two for decode, which share memory
hosts       a gateway and three engines, each on a host of its own, connected with mutual TLS
host-roles  the same with two engines for prefill and two for decode, which have pages over TCP
servers     two servers, the second of which has the pages of its prompts from the first over TCP
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import httpx
from fault_acts import BRIEF_S, LONG_S, LOSSY_S, TIMEOUT_S, Fault, counters, end, pause, ready
from fault_hosts import HostRoles, Hosts
from fault_network import Network
from fault_streams import body, streamed

from firelane.bench.client import first_model
from firelane.bench.server import ServerProcess

ROLES = ("prefill", "decode")


class Setting(Protocol):
    """Servers that end with the stack that they are made with. faults: by name."""

    faults: dict[str, Fault]

    def places(self) -> dict[str, list[str]]:
        """By their kind: where faults can hit now."""
        ...

    def ask(self, client: httpx.Client, number: int, salt: str) -> Iterator[str]: ...
    def is_whole(self) -> bool:
        """All engines serve."""
        ...

    def counters(self) -> dict[str, int]: ...


class Roles:
    """One server with two engines for prefill and two for decode, which share memory."""

    def __init__(self, stack: contextlib.ExitStack, tokens: int) -> None:
        self._tokens = tokens
        options = ["--prefill", "2", "--decode", "2", "--threads", "1", "--kv-cache-gib", "0.2"]
        self._server = ServerProcess([*options, "--engine-timeout", str(TIMEOUT_S)])
        stack.callback(self._server.stop)
        self._model = first_model(self._server.url)
        self.faults = {
            f"{number.name} of an engine for {role}": Fault(role, partial(end, number=number))
            for role in ROLES
            for number in (signal.SIGKILL, signal.SIGSTOP)
        }
        self.faults["SIGSTOP of the gateway, which goes on"] = Fault("gateway", pause)

    def ask(self, client: httpx.Client, number: int, salt: str) -> Iterator[str]:
        return streamed(client, self._server.url, body(self._model, number, salt, self._tokens))

    def is_whole(self) -> bool:
        return ready(self._server.url) == len(self._server.engine_pids) == 4

    def counters(self) -> dict[str, int]:
        return counters(self._server.url, "handed_over", "sequences_resumed", "kv_pulls_ok", "engine_deaths")

    def places(self) -> dict[str, list[str]]:
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in self._server.engine_pids}
        found = {
            role: [str(pid) for pid, words in sorted(commands.items()) if f"role={role}" in words]
            for role in ROLES
        }
        return {**found, "gateway": [str(self._server.gateway_pid)]}


class Servers:
    """Two servers, the second of which has its pages from the first. Whoever asks is the router: first the
    server for prefill, then the one for decode."""

    def __init__(self, stack: contextlib.ExitStack, tokens: int) -> None:
        self._tokens = tokens
        self._net = stack.enter_context(Network(["p", "d"]))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._key = folder / "cluster.key"
        self._key.write_text("0123456789abcdef0123456789abcdef\n")
        self._prefill, self._decode = (self._start(stack, name) for name in ("p", "d"))
        self._model = first_model(self._prefill.url)
        self.faults = {
            "SIGKILL of the engine with the pages": Fault("p", partial(end, number=signal.SIGKILL)),
            "SIGKILL of the engine that pulls": Fault("d", partial(end, number=signal.SIGKILL)),
            "SIGSTOP of the engine with the pages": Fault("p", partial(end, number=signal.SIGSTOP)),
            "SIGSTOP of the engine that pulls": Fault("d", partial(end, number=signal.SIGSTOP)),
            "SIGSTOP of the server with the pages, which goes on": Fault("server", pause),
            "partition of engines, 1 s": Fault("net", partial(self._cut, seconds=BRIEF_S)),
            "partition of engines, 8 s": Fault("net", partial(self._cut, seconds=LONG_S)),
            "no packet from the engine that pulls, 8 s": Fault("net", lambda _: self._one_way("d", "p")),
            "no packet to the engine that pulls, 8 s": Fault("net", lambda _: self._one_way("p", "d")),
            "half-open: the engine with the pages dies unseen": Fault("p", self._half_open),
            "5% of packets lost, 6 s": Fault("net", partial(self._cut, seconds=LOSSY_S, share=0.05)),
            "30% of packets lost, 6 s": Fault("net", partial(self._cut, seconds=LOSSY_S, share=0.3)),
        }

    def places(self) -> dict[str, list[str]]:
        servers = {"p": self._prefill, "d": self._decode}
        engines = {name: [str(server.engine_pids[0])] for name, server in servers.items()}
        return {**engines, "server": [str(self._prefill.gateway_pid)], "net": [""]}

    def ask(self, client: httpx.Client, number: int, salt: str) -> Iterator[str]:
        request = body(self._model, number, salt, self._tokens)
        leg = {**request, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        answer = client.post(f"{self._prefill.url}/v1/completions", json=leg)
        answer.raise_for_status()
        params = answer.json().get("kv_transfer_params")
        yield from streamed(client, self._decode.url, {**request, "kv_transfer_params": params})

    def is_whole(self) -> bool:
        return ready(self._prefill.url) == ready(self._decode.url) == 1

    def counters(self) -> dict[str, int]:
        names = ("kv_pulls_ok", "kv_pulls_stale", "kv_pulls_lost", "kv_pulls_late", "sequences_resumed")
        return counters(self._decode.url, *names)

    def _start(self, stack: contextlib.ExitStack, name: str) -> ServerProcess:
        address = self._net.address(name)
        transfer = ["--kv-transfer-address", f"{address}:5600", "--cluster-key-file", str(self._key)]
        options = ["--threads", "1", "--kv-cache-gib", "0.2", "--engine-timeout", str(TIMEOUT_S)]
        server = ServerProcess(
            ["--host", address, "--allow-anonymous", *options, *transfer], prefix=self._net.prefix(name)
        )
        stack.callback(server.stop)
        return server

    def _cut(self, _: str, *, seconds: float, share: float = 1.0) -> None:
        with self._net.cut("p", "d", share):
            time.sleep(seconds)

    def _one_way(self, source: str, target: str) -> None:
        with self._net.one_way(source, target):
            time.sleep(LONG_S)

    def _half_open(self, pid: str) -> None:
        with self._net.cut("p", "d"):
            end(pid, signal.SIGKILL)
            time.sleep(BRIEF_S)


SETTINGS: dict[str, Callable[[contextlib.ExitStack, int], Setting]] = {
    "roles": Roles,
    "hosts": Hosts,
    "host-roles": HostRoles,
    "servers": Servers,
}
