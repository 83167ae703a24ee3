"""A gateway in front of engines of other hosts, over mutual TLS: hosts are killed, stopped and shut down
under a real client, which notices nothing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_support import metric, wait_until
from steady_answers import Connect, under_load, undisturbed

from firelane.bench.server import ServerProcess

CERTIFICATES = Path(__file__).parents[1] / "gateway" / "certificates"
PEM = {"ca": CERTIFICATES / "one.pem", "cert": CERTIFICATES / "one.pem", "key": CERTIFICATES / "one.key"}

FEW = ("seeded", "logprobs", "schema", "whole")


def tls(prefix: str) -> list[str]:
    return [word for name, path in PEM.items() for word in (f"{prefix}-{name}", str(path))]


class Hosts:
    """Two hosts, each with an engine, and the gateway. A host that is started again has the same address."""

    def __init__(self, environ: dict[str, str], stack: contextlib.ExitStack) -> None:
        self.environ, self.stack = environ, stack
        self.engines = [self.start("0"), self.start("0")]
        addresses = [engine.url for engine in self.engines]
        self.server = ServerProcess(
            ["--engines", *addresses, *tls("--engine-tls"), "--engine-timeout", "3"], environ=environ
        )
        stack.callback(self.server.stop)
        self.all_up()

    def start(self, port: str) -> ServerProcess:
        options = ["--port", port, "--threads", "1", "--kv-cache-gib", "0.1", *tls("--tls")]
        engine = ServerProcess(options, command="engine", environ=self.environ)
        self.stack.callback(engine.stop)
        return engine

    def start_again(self, place: int) -> None:
        port = self.engines[place].url.rpartition(":")[2]
        self.engines[place] = self.start(port)
        self.all_up()

    def all_up(self) -> None:
        wait_until(lambda: metric(self.server.url, "firelane:replicas_up") == 2)


@pytest.fixture(scope="module")
def hosts(environ: dict[str, str]) -> Iterator[Hosts]:
    with contextlib.ExitStack() as stack:
        yield Hosts(environ, stack)


def test_answers_survive_a_host_that_is_killed(hosts: Hosts, connect: Connect) -> None:
    expected = undisturbed(connect(hosts.server), FEW)
    deaths = metric(hosts.server.url, "firelane:engine_deaths_total")
    found = under_load(hosts.server, connect, hosts.engines[1].process.kill, FEW)
    assert found == expected
    assert metric(hosts.server.url, "firelane:engine_deaths_total") > deaths
    hosts.start_again(1)


def test_answers_survive_a_host_that_is_stopped(hosts: Hosts, connect: Connect) -> None:
    """Its engine runs, and its connections stand."""
    expected, host = undisturbed(connect(hosts.server), FEW), hosts.engines[0].process
    try:
        found = under_load(hosts.server, connect, lambda: host.send_signal(signal.SIGSTOP), FEW)
    finally:
        host.send_signal(signal.SIGCONT)
    assert found == expected
    hosts.all_up()


def test_answers_survive_the_orderly_end_of_a_host(hosts: Hosts, connect: Connect) -> None:
    expected, host = undisturbed(connect(hosts.server), FEW), hosts.engines[1].process
    found = under_load(hosts.server, connect, lambda: host.send_signal(signal.SIGTERM), FEW)
    assert found == expected
    assert host.wait(300) == 0
    hosts.start_again(1)
