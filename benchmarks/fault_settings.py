"""Servers under test, each with what can go wrong in it:

roles     one server, two engines for prefill and two for decode, which share memory
hosts     a gateway and three engines, each on a host of its own, connected with mutual TLS
servers   two servers, the second of which has the pages of its prompts from the first over TCP
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import httpx
from fault_network import Network
from fault_streams import body, streamed

from firelane.bench.client import first_model
from firelane.bench.server import ServerProcess

PATIENCE_S = 300.0
TIMEOUT_S = 3
"""Of engines without a sign of life."""
BRIEF_S, LONG_S, PAUSE_S, LOSSY_S = 1.0, 8.0, 4.0, 6.0
"""A disturbance that a connection outlasts, and one after which it is given up; of a process that is stopped
and goes on, and of a network that loses packets."""
ROLES = ("prefill", "decode")


class Fault(NamedTuple):
    """hits: the kind of its place; act: returns when it is over, not when all serve again."""

    hits: str
    act: Callable[[str], None]


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
    """See above."""

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
            role: [str(pid) for pid, words in sorted(commands.items()) if f'"role":"{role}"' in words]
            for role in ROLES
        }
        return {**found, "gateway": [str(self._server.gateway_pid)]}


class Hosts:
    """See above."""

    NAMES = ("h0", "h1", "h2")

    def __init__(self, stack: contextlib.ExitStack, tokens: int) -> None:
        self._stack, self._tokens = stack, tokens
        self._net = stack.enter_context(Network(["gw", *self.NAMES]))
        addresses = [self._net.address(name) for name in ("gw", *self.NAMES)]
        self._pem = certificate(Path(stack.enter_context(tempfile.TemporaryDirectory())), addresses)
        self._hosts = {name: self._start(name) for name in self.NAMES}
        engines = [self._net.address(name) for name in self.NAMES]
        options = ["--engines", *engines, *self._tls("--engine-tls"), "--engine-timeout", str(TIMEOUT_S)]
        self._server = ServerProcess(
            ["--host", self._net.address("gw"), "--allow-anonymous", *options], prefix=self._net.prefix("gw")
        )
        stack.callback(self._server.stop)
        wait(self.is_whole)
        self._model = first_model(self._server.url)
        self.faults = {
            "SIGKILL of an engine": Fault("host", partial(self._end_engine, number=signal.SIGKILL)),
            "SIGSTOP of an engine": Fault("host", partial(self._end_engine, number=signal.SIGSTOP)),
            "SIGKILL of an engine's host": Fault("host", self._kill_host),
            "SIGSTOP of an engine's host, which goes on": Fault("host", self._pause_host),
            "SIGSTOP of the gateway, which goes on": Fault("gateway", pause),
            "partition of gateway and engine, 1 s": Fault("host", partial(self._cut, seconds=BRIEF_S)),
            "partition of gateway and engine, 8 s": Fault("host", partial(self._cut, seconds=LONG_S)),
            "no packet from gateway to engine, 8 s": Fault("host", partial(self._one_way, to_engine=True)),
            "no packet from engine to gateway, 8 s": Fault("host", partial(self._one_way, to_engine=False)),
            "half-open: the engine's host dies unseen": Fault("host", self._half_open),
            "5% of packets lost, 6 s": Fault("host", partial(self._cut, seconds=LOSSY_S, share=0.05)),
            "30% of packets lost, 6 s": Fault("host", partial(self._cut, seconds=LOSSY_S, share=0.3)),
        }

    def places(self) -> dict[str, list[str]]:
        return {"host": list(self.NAMES), "gateway": [str(self._server.gateway_pid)]}

    def ask(self, client: httpx.Client, number: int, salt: str) -> Iterator[str]:
        return streamed(client, self._server.url, body(self._model, number, salt, self._tokens))

    def is_whole(self) -> bool:
        return ready(self._server.url) == len(self.NAMES)

    def counters(self) -> dict[str, int]:
        return counters(self._server.url, "sequences_resumed", "engine_deaths")

    def _start(self, name: str) -> ServerProcess:
        options = ["--host", self._net.address(name), "--port", "29600", "--threads", "1"]
        sizes = ["--kv-cache-gib", "0.2", "--engine-timeout", str(TIMEOUT_S)]
        host = ServerProcess(
            [*options, *sizes, *self._tls("--tls")], command="engine", prefix=self._net.prefix(name)
        )
        self._stack.callback(host.stop)
        return host

    def _tls(self, prefix: str) -> list[str]:
        return [word for name, path in self._pem.items() for word in (f"{prefix}-{name}", str(path))]

    def _end_engine(self, name: str, *, number: signal.Signals) -> None:
        end(str(self._hosts[name].engine_pids[0]), number)

    def _pause_host(self, name: str) -> None:
        pause(str(self._hosts[name].gateway_pid), LONG_S)

    def _kill_host(self, name: str) -> None:
        kill(self._hosts[name])
        self._hosts[name] = self._start(name)

    def _cut(self, name: str, *, seconds: float, share: float = 1.0) -> None:
        with self._net.cut("gw", name, share):
            time.sleep(seconds)

    def _one_way(self, name: str, *, to_engine: bool) -> None:
        with self._net.one_way(*(("gw", name) if to_engine else (name, "gw"))):
            time.sleep(LONG_S)

    def _half_open(self, name: str) -> None:
        """Its end is lost, and what the gateway sends later is nobody's."""
        with self._net.cut("gw", name):
            kill(self._hosts[name])
            time.sleep(BRIEF_S)
        self._hosts[name] = self._start(name)


class Servers:
    """See above. Whoever asks is the router: first the server for prefill, then the one for decode."""

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
    "servers": Servers,
}


def end(pid: str, number: signal.Signals) -> None:
    """Kill or stop an engine, and wait until it is gone: whoever keeps it ends one that shows no life."""
    os.kill(int(pid), number)
    wait(lambda: not Path(f"/proc/{pid}").exists())


def pause(pid: str, seconds: float = PAUSE_S) -> None:
    os.kill(int(pid), signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(int(pid), signal.SIGCONT)


def kill(host: ServerProcess) -> None:
    """With its engine, which follows by itself."""
    engines = host.engine_pids
    host.process.kill()
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in engines))
    host.stop()


def wait(condition: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError("the servers do not come back")
        time.sleep(0.1)


def ready(url: str) -> int:
    """Number of engines that serve."""
    return counters(url, "replicas_up")["replicas_up"]


def counters(url: str, *names: str) -> dict[str, int]:
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text.splitlines()
    found = dict.fromkeys(names, 0)
    for line in lines:
        name = line.partition("{")[0].partition(" ")[0].removeprefix("firelane:").removesuffix("_total")
        if name in found and not line.startswith("#"):
            found[name] += int(float(line.split()[-1]))
    return found


def certificate(folder: Path, addresses: list[str]) -> dict[str, Path]:
    """One that signs itself, for all hosts: the options that end with these words, and their files."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ",".join(f"IP:{address}" for address in addresses)
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    files = ["-days", "2", "-subj", "/CN=cluster", "-addext", f"subjectAltName={names}"]
    subprocess.run([*words, *files, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return {"ca": cert, "cert": cert, "key": key}
