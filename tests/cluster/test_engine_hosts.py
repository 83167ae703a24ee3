"""Gateways' links to engines on other hosts, and the hosts: real connections, engines without a model."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from hosts_support import HELLO, PATIENCE_S, Engine, play, until

from firelane.cluster.addresses import Place
from firelane.cluster.dial import dial
from firelane.engine_state import Connected, Lost
from firelane.errors import PeerLostError, UsageError
from firelane.gateway.engines.forgetting import forget_tenant
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import ENOUGH_PROOFS
from firelane.link.greeting import hello
from firelane.link.tls import TlsFiles
from firelane.wire.frames import PROTOCOL_VERSION
from firelane.wire.numbers import number_of

PEM = Path(__file__).parents[1] / "gateway" / "certificates"


def tls(own="one", ca="one"):
    return TlsFiles(ca=PEM / f"{ca}.pem", cert=PEM / f"{own}.pem", key=PEM / f"{own}.key")


@pytest.mark.parametrize("is_secret", [False, True], ids=["plain", "TLS"])
def test_a_request_goes_to_an_engine_elsewhere_and_back(is_secret):
    async def scenario(world):
        await world.host(context=tls().server_context() if is_secret else None)
        await world.connect(context=tls().client_context() if is_secret else None)
        await world.serving(1)
        own_id, sink = world.submit()
        engine = world.engines[0]
        await until(lambda: engine.requests)
        (request,) = engine.requests
        assert number_of(request.id) == engine.numbers[0] == 1
        assert number_of(own_id) == 0
        engine.answer(request.id, [5, 6, 7], "length")
        await until(lambda: sink.ended)
        assert sink.tokens == [5, 6, 7]
        assert world.readies == [str(world.places[0])]

    play(scenario)


def test_a_request_goes_on_at_another_host_when_its_own_is_gone():
    async def scenario(world):
        await world.host()
        await world.host()
        await world.connect()
        await world.serving(2)
        _, sink = world.submit()
        await until(lambda: any(engine.requests for engine in world.engines))
        first = 0 if world.engines[0].requests else 1
        request = world.engines[first].requests[0]
        world.engines[first].answer(request.id, [5, 6])
        await until(lambda: sink.tokens == [5, 6])
        await world.hosts[first].close()
        other = world.engines[1 - first]
        await until(lambda: other.requests)
        assert other.requests[0].output_start == 4
        other.answer(other.requests[0].id, [7], "length")
        await until(lambda: sink.ended)
        assert sink.tokens == [5, 6, 7]

    play(scenario)


def test_a_request_that_comes_back_to_the_same_engine_has_an_id_that_it_has_never_had():
    async def scenario(world):
        await world.host()
        await world.connect()
        await world.serving(1)
        _, sink = world.submit()
        engine = world.engines[0]
        await until(lambda: engine.requests)
        engine.answer(engine.requests[0].id, [5])
        await until(lambda: sink.tokens == [5])
        engine.end(engine.numbers[0])  # the connection alone
        await until(lambda: len(engine.requests) == 2)
        before, now = (request.id for request in engine.requests)
        assert engine.numbers == [1, 2]
        assert (number_of(before), number_of(now)) == (1, 2)
        engine.answer(now, [6], "length")
        await until(lambda: sink.ended)
        assert sink.tokens == [5, 6]

    play(scenario)


def test_a_network_that_fails_again_and_again_is_not_the_requests_fault():
    """Each time the gateway gives up an engine that has begun the request and shows no life any more."""

    async def scenario(world):
        await world.host()
        await world.connect()
        await world.serving(1)
        _, sink = world.submit()
        engine, link = world.engines[0], world.replicas.links[0]
        for loss in range(1, ENOUGH_PROOFS + 3):
            await until(lambda loss=loss: len(engine.requests) == loss)
            if loss == 1:
                engine.answer(engine.requests[-1].id, [5])
                await until(lambda: sink.tokens == [5])
            link.hang("no sign of life")
            await world.serving(1)
        await until(lambda: len(engine.requests) == ENOUGH_PROOFS + 3)
        engine.answer(engine.requests[-1].id, [6], "length")
        await until(lambda: sink.ended)
        assert (sink.tokens, sink.error) == ([5, 6], None)

    play(scenario)


@pytest.mark.parametrize(
    ("own", "reason"),
    [(hello(99, "9", "m"), "the other end 99"), (hello(PROTOCOL_VERSION, "1", "x"), "another model")],
    ids=["version", "model"],
)
def test_a_gateway_of_another_version_or_model_is_refused(own, reason):
    async def scenario(world):
        await world.host()
        await world.connect(own)
        await until(lambda: world.replicas.links and reason in world.replicas.links[0].engine.reason)
        assert world.engines[0].numbers == []

    play(scenario)


@pytest.mark.parametrize(
    ("server", "client"),
    [
        (tls(), tls("other", "one")),
        (tls(), tls("one", "other")),
        (tls(), None),
        (None, tls()),
    ],
    ids=["strange gateway", "strange host", "plain gateway", "plain host"],
)
def test_who_has_no_certificate_of_the_cluster_gets_nowhere(server, client):
    async def scenario(world):
        await world.host(context=server and server.server_context())
        await world.connect(context=client and client.client_context())
        await until(lambda: world.replicas.links and "engine at" in world.replicas.links[0].engine.reason)
        assert world.engines[0].numbers == []

    play(scenario)


def test_a_gateway_whose_certificate_is_not_trusted_is_told_so():
    async def scenario(world):
        await world.host(context=tls().server_context())
        await world.connect(context=tls("other", "one").client_context())
        await until(lambda: world.replicas.links and "may not trust" in world.replicas.links[0].engine.reason)

    play(scenario)


def test_a_host_is_known_by_the_name_in_its_certificate():
    async def scenario(world):
        await world.host(context=tls().server_context())
        world.places = [Place(world.places[0].address, "other.example")]
        await world.connect(context=tls().client_context())
        await until(
            lambda: world.replicas.links and "mismatch" in world.replicas.links[0].engine.reason.lower()
        )

    play(scenario)


def test_an_engine_of_another_identity_is_refused_beside_those_that_serve():
    async def scenario(world):
        await world.host()
        await world.host(identity="other")
        await world.connect()
        await world.serving(1)
        await until(lambda: any("model has changed" in link.engine.reason for link in world.replicas.links))

    play(scenario)


def test_engines_come_and_go(monkeypatch):
    monkeypatch.setattr("firelane.cluster.remote_fleet.LOOK_S", 0.001)

    async def scenario(world):
        await world.host()
        await world.host()
        both = world.places
        world.places = both[:1]
        await world.connect()
        await world.serving(1)
        world.discovery.places = both
        await world.serving(2)
        world.discovery.places = OSError("the name server is down")
        await asyncio.sleep(0)
        world.discovery.places = both[1:]
        await until(lambda: not world.fleet.is_wanted(both[0]))
        assert len(world.replicas.serving) == 2  # while it has a connection
        await world.hosts[0].close()
        await until(lambda: len(world.replicas.links) == 1)
        assert [link.name for link in world.replicas.serving] == [str(both[1])]

    play(scenario)


def test_a_tenant_is_forgotten_by_engines_of_other_hosts():
    async def scenario(world):
        await world.host()
        await world.host()
        await world.connect()
        await world.serving(2)
        assert await forget_tenant([world.replicas], "acme", PATIENCE_S) == ([5, 5], 0)
        world.hosts[0].lose_engine()
        world.engines[0].die()
        await world.serving(1)
        assert await forget_tenant([world.replicas], "acme", PATIENCE_S) == ([5], 1)

    play(scenario)


def test_a_gateway_waits_for_a_host_that_starts_its_engine_anew():
    async def scenario(world):
        await world.host()
        host, engine = world.hosts[0], world.engines[0]
        await world.connect()
        await world.serving(1)
        host.lose_engine()
        engine.die()
        await until(lambda: world.replicas.links[0].engine.reason.endswith("the engine is being started"))
        world.stack.callback(Engine(host).die)
        await world.serving(1)

    play(scenario)


def test_a_slow_gateway_holds_up_the_engines_socket_and_no_memory():
    async def scenario(world):
        await world.host()
        place, engine = world.places[0], world.engines[0]
        dialed = await dial(place, HELLO, None)  # it does not read
        await until(lambda: engine.socks)
        sock, sent = engine.socks[1], 0
        with contextlib.suppress(BlockingIOError):
            while sent < 1 << 28:
                sent += sock.send(bytes(1 << 16))
                await asyncio.sleep(0)
        assert sent < 1 << 27
        dialed.transport.abort()

    play(scenario)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"ca": PEM / "missing.pem"}, "--engine-tls-ca"),
        ({"ca": PEM / "one.key"}, "--engine-tls-ca"),
        ({"cert": PEM / "one.key"}, "--engine-tls-cert"),
        ({"key": PEM / "other.key"}, "--engine-tls-key"),
        ({"key": PEM / "encrypted.key"}, "--engine-tls-key"),
    ],
)
def test_files_that_cannot_be_used_are_named(files, named):
    given = {"ca": PEM / "one.pem", "cert": PEM / "one.pem", "key": PEM / "one.key", **files}
    with pytest.raises(UsageError, match=named):
        TlsFiles(**given, prefix="--engine-tls").server_context()


def test_a_connection_that_says_nothing_is_ended(monkeypatch):
    monkeypatch.setattr("firelane.link.accepting.GREETING_S", 0.0)

    async def scenario(world):
        await world.host()
        reader, writer = await asyncio.open_connection(*world.places[0].address)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()

    play(scenario)


def test_an_engine_that_takes_no_connections_does_not_hold_up_its_host():
    async def scenario(world):
        await world.host()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x")
        ours.setblocking(True)
        world.hosts[0].take_engine(ours)
        with pytest.raises(PeerLostError, match="takes no connection"):
            await dial(world.places[0], HELLO, None)
        theirs.close()

    play(scenario)


def test_a_connection_that_has_ended_before_it_is_taken_over_is_lost_at_once():
    async def scenario(world):
        await world.host()
        dialed = await dial(world.places[0], HELLO, None)
        dialed.transport.abort()
        await asyncio.sleep(0.0)
        downs = []
        link = EngineLink(tell=lambda _, event: downs.append(event))
        link.adopt(dialed.transport, dialed.number, b"")
        assert downs == [Connected(is_remote=True), Lost("connection closed")]

    play(scenario)
