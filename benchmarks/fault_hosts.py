"""Engines on hosts of their own under test, connected with mutual TLS, without roles and with such."""

from __future__ import annotations

import contextlib
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path

import httpx
from fault_acts import (
    BRIEF_S,
    LONG_S,
    LOSSY_S,
    TIMEOUT_S,
    Fault,
    certificate,
    counters,
    end,
    kill,
    pause,
    ready,
    wait,
)
from fault_network import Network
from fault_streams import body, streamed

from firelane.bench.client import first_model
from firelane.bench.server import ServerProcess

PLAIN = dict.fromkeys(("h0", "h1", "h2"), "both")
APART = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode"}
PAGES_PORT = 5600


class Cluster:
    """A gateway and one engine for each name, of this role, in network namespaces; with the acts against
    them."""

    def __init__(self, stack: contextlib.ExitStack, tokens: int, roles: Mapping[str, str]) -> None:
        self._stack, self._tokens, self._roles = stack, tokens, roles
        self.net = stack.enter_context(Network(["gw", *roles]))
        addresses = [self.net.address(name) for name in ("gw", *roles)]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._pem, self._key = certificate(folder, addresses), folder / "cluster.key"
        self._key.write_text("0123456789abcdef0123456789abcdef\n")
        self.hosts = {name: self._start(name) for name in roles}
        options = [
            "--engines",
            *addresses[1:],
            *self._tls("--engine-tls"),
            "--engine-timeout",
            str(TIMEOUT_S),
        ]
        self.server = ServerProcess(
            ["--host", addresses[0], "--allow-anonymous", *options], prefix=self.net.prefix("gw")
        )
        stack.callback(self.server.stop)
        wait(self.is_whole)
        self._model = first_model(self.server.url)

    def ask(self, client: httpx.Client, number: int, salt: str) -> Iterator[str]:
        return streamed(client, self.server.url, body(self._model, number, salt, self._tokens))

    def is_whole(self) -> bool:
        return ready(self.server.url) == len(self._roles)

    def _start(self, name: str) -> ServerProcess:
        address, role = self.net.address(name), self._roles[name]
        options = ["--host", address, "--port", "29600", "--threads", "1", *self._tls("--tls")]
        sizes = ["--kv-cache-gib", "0.2", "--engine-timeout", str(TIMEOUT_S)]
        pages = ["--kv-transfer-address", f"{address}:{PAGES_PORT}", "--cluster-key-file", str(self._key)]
        apart = ["--role", role, *pages] if role != "both" else []
        host = ServerProcess([*options, *sizes, *apart], command="engine", prefix=self.net.prefix(name))
        self._stack.callback(host.stop)
        return host

    def _tls(self, prefix: str) -> list[str]:
        return [word for name, path in self._pem.items() for word in (f"{prefix}-{name}", str(path))]

    def end_engine(self, name: str, *, number: signal.Signals) -> None:
        end(str(self.hosts[name].engine_pids[0]), number)

    def pause_host(self, name: str) -> None:
        pause(str(self.hosts[name].gateway_pid), LONG_S)

    def kill_host(self, name: str) -> None:
        kill(self.hosts[name])
        self.hosts[name] = self._start(name)

    def cut(self, name: str, *, seconds: float, share: float = 1.0) -> None:
        with self.net.cut("gw", name, share):
            time.sleep(seconds)

    def one_way(self, name: str, *, to_engine: bool) -> None:
        with self.net.one_way(*(("gw", name) if to_engine else (name, "gw"))):
            time.sleep(LONG_S)

    def half_open(self, name: str) -> None:
        """Its end is lost, and what the gateway sends later is nobody's."""
        with self.net.cut("gw", name):
            kill(self.hosts[name])
            time.sleep(BRIEF_S)
        self.hosts[name] = self._start(name)

    def faults(self) -> dict[str, Fault]:
        """Faults that do not depend on roles."""
        return {
            "SIGSTOP of an engine's host, which goes on": Fault("host", self.pause_host),
            "SIGSTOP of the gateway, which goes on": Fault("gateway", pause),
            "partition of gateway and engine, 1 s": Fault("host", partial(self.cut, seconds=BRIEF_S)),
            "partition of gateway and engine, 8 s": Fault("host", partial(self.cut, seconds=LONG_S)),
            "no packet from gateway to engine, 8 s": Fault("host", partial(self.one_way, to_engine=True)),
            "no packet from engine to gateway, 8 s": Fault("host", partial(self.one_way, to_engine=False)),
            "half-open: the engine's host dies unseen": Fault("host", self.half_open),
            "5% of packets lost, 6 s": Fault("host", partial(self.cut, seconds=LOSSY_S, share=0.05)),
            "30% of packets lost, 6 s": Fault("host", partial(self.cut, seconds=LOSSY_S, share=0.3)),
        }

    def ends(self, hits: str, what: str) -> dict[str, Fault]:
        """Return the faults that end an engine of this kind, or its host."""
        return {
            f"SIGKILL of an engine{what}": Fault(hits, partial(self.end_engine, number=signal.SIGKILL)),
            f"SIGSTOP of an engine{what}": Fault(hits, partial(self.end_engine, number=signal.SIGSTOP)),
            f"SIGKILL of an engine's host{what}": Fault(hits, self.kill_host),
        }


class Hosts:
    """A gateway and three engines without roles."""

    def __init__(self, stack: contextlib.ExitStack, tokens: int) -> None:
        self._cluster = Cluster(stack, tokens, PLAIN)
        self.ask, self.is_whole = self._cluster.ask, self._cluster.is_whole
        self.faults = {**self._cluster.ends("host", ""), **self._cluster.faults()}

    def places(self) -> dict[str, list[str]]:
        return {"host": list(PLAIN), "gateway": [str(self._cluster.server.gateway_pid)]}

    def counters(self) -> dict[str, int]:
        return counters(self._cluster.server.url, "sequences_resumed", "engine_deaths")


class HostRoles:
    """A gateway, two engines for prefill and two for decode; between these the network fails, too."""

    def __init__(self, stack: contextlib.ExitStack, tokens: int) -> None:
        self._cluster, self._rng = Cluster(stack, tokens, APART), random.Random(0)
        self.ask, self.is_whole = self._cluster.ask, self._cluster.is_whole
        cuts = {
            "partition of prefill and decode, 1 s": (("to", "from"), BRIEF_S, 1.0),
            "partition of prefill and decode, 8 s": (("to", "from"), LONG_S, 1.0),
            "no packet from prefill to decode, 8 s": (("from",), LONG_S, 1.0),
            "no packet from decode to prefill, 8 s": (("to",), LONG_S, 1.0),
            "30% of packets of prefill and decode lost, 6 s": (("to", "from"), LOSSY_S, 0.3),
        }
        between = {
            name: Fault("net", partial(self._between, ways=ways, seconds=seconds, share=share))
            for name, (ways, seconds, share) in cuts.items()
        }
        ends = [self._cluster.ends(role, f" for {role}") for role in ("prefill", "decode")]
        self.faults = {**ends[0], **ends[1], **between, **self._cluster.faults()}

    def places(self) -> dict[str, list[str]]:
        """One engine of each role for faults that ask for it, the others for those that do not."""
        of = {role: [name for name, own in APART.items() if own == role] for role in ("prefill", "decode")}
        for names in of.values():
            self._rng.shuffle(names)
        hosts = [names.pop() for names in of.values()]
        return {**of, "host": hosts, "gateway": [str(self._cluster.server.gateway_pid)], "net": [""]}

    def counters(self) -> dict[str, int]:
        pulls = ("kv_pulls_ok", "kv_pulls_stale", "kv_pulls_lost", "kv_pulls_late")
        names = ("handed_over", "sequences_resumed", "engine_deaths", *pulls)
        return counters(self._cluster.server.url, *names)

    def _between(self, _: str, *, ways: tuple[str, ...], seconds: float, share: float) -> None:
        """Lose `share` of the packets between each engine for prefill and each one for decode, for `seconds`.
        ways: "to" and "from", as seen from prefill."""
        net = self._cluster.net
        with contextlib.ExitStack() as stack:
            for prefill, decode in product(("p0", "p1"), ("d0", "d1")):
                if "from" in ways:
                    stack.enter_context(net.one_way(prefill, decode, share))
                if "to" in ways:
                    stack.enter_context(net.one_way(decode, prefill, share))
            time.sleep(seconds)
