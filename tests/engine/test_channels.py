"""Connections of several gateways to one engine."""

from __future__ import annotations

import socket

import pytest

from firelane.engine.process.channels import Channels, split_step
from firelane.engine.process.heartbeat import Pulse
from firelane.engine.process.process import SocketChannel
from firelane.errors import PeerLostError
from firelane.link.channel import Channel
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import (
    Abort,
    Asleep,
    Awake,
    Beat,
    Drain,
    EngineStats,
    Finished,
    ForgetTenant,
    Forgotten,
    FromEngine,
    NewRequest,
    Progress,
    Rejected,
    Sampling,
    Sleep,
    Started,
    StepFrame,
    Submit,
    TellPages,
    ToEngine,
    Wake,
)
from firelane.wire.numbers import NUMBER_BYTES, first_id

OWNER, ONE, TWO = first_id(0), first_id(1), first_id(2)


class Gateway:
    """The other end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel: Channel[FromEngine] = Channel(sock, FromEngine)

    def send(self, frame) -> None:
        self.channel.send(frame)

    def frames(self) -> list[FromEngine]:
        return self.channel.receive(0.0)

    def close(self) -> None:
        self.channel.close()


class Scene:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.acceptor, inner = socket.socketpair()
        self.owner = Gateway(ours)
        self.channels = Channels(Channel(theirs, ToEngine), inner)
        self.gateways: list[Gateway] = []

    def join(self, number: int) -> Gateway:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.acceptor, [number.to_bytes(NUMBER_BYTES, "little")], [theirs.fileno()])
        self.gateways.append(Gateway(ours))
        self.channels.receive()
        return self.gateways[-1]

    def close(self) -> None:
        for one in (*self.gateways, self.owner, self.channels, self.acceptor):
            one.close()


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.close()


def request(request_id: int) -> NewRequest:
    return NewRequest(id=request_id, prompt=b"\1\0\0\0", sampling=Sampling())


def step(ids, tokens, finished=(), counts=(), **stats) -> StepFrame:
    ends = [Finished(one, "length") for one in finished]
    return StepFrame(7, list(ids), list(tokens), [], ends, [], EngineStats(**stats), [], list(counts))


def test_a_step_goes_to_those_whose_tokens_are_in_it(scene) -> None:
    one, two = scene.join(1), scene.join(2)
    scene.channels.send(step([ONE, TWO, ONE + 1], [5, 6, 7], running=3))
    (first,), (second,) = one.frames(), two.frames()
    assert (first.ids, first.tokens, first.stats.running) == ([ONE, ONE + 1], [5, 7], 3)
    assert (second.ids, second.tokens, second.stats.running) == ([TWO], [6], 3)


def test_runs_of_tokens_are_cut_with_their_counts() -> None:
    parts = split_step(step([ONE, OWNER, ONE + 1], [1, 2, 3, 4, 5, 6], counts=[3, 1, 2]))
    assert (parts[1].ids, parts[1].tokens, parts[1].counts) == ([ONE, ONE + 1], [1, 2, 3, 5, 6], [3, 2])
    assert (parts[0].ids, parts[0].tokens, parts[0].counts) == ([OWNER], [4], [1])


def test_a_step_of_one_gateway_is_not_copied() -> None:
    frame = step([ONE], [1])
    assert split_step(frame)[1] is frame


def test_starts_and_ends_without_tokens_find_their_gateway() -> None:
    frame = StepFrame(1, [], [], [Started(TWO, 0)], [Finished(ONE, "abort")], [], EngineStats())
    parts = split_step(frame)
    assert [one.id for one in parts[2].started] == [TWO]
    assert [one.id for one in parts[1].finished] == [ONE]


def test_load_is_told_to_all_before_the_engine_waits(scene) -> None:
    one, two = scene.join(1), scene.join(2)
    scene.channels.send(step([ONE], [5], running=1))
    scene.channels.send(step([ONE], [6], finished=[ONE], running=0, steps=2))
    scene.channels.receive(0.001)
    assert one.frames()[-1].stats.steps == 2
    assert two.frames()[-1].stats.steps == 2
    assert scene.owner.frames()[-1].stats.steps == 2


def test_who_comes_late_hears_what_was_said(scene) -> None:
    scene.channels.send(Progress("pack", 1, 2))
    scene.channels.send(Progress("pack", 2, 2))
    scene.channels.send(Asleep(1, 2, 0.1))
    assert scene.join(1).frames() == [Progress("pack", 2, 2), Asleep(1, 2, 0.1)]
    scene.channels.send(Awake(0.1))
    assert scene.join(2).frames() == [Progress("pack", 2, 2)]


def test_requests_come_from_all(scene) -> None:
    one = scene.join(1)
    one.send(Submit([request(ONE)]))
    scene.owner.send(Submit([request(OWNER)]))
    assert scene.channels.receive(1.0) == [Submit([request(OWNER)]), Submit([request(ONE)])]
    scene.channels.send(Rejected(ONE, "no"))
    assert one.frames() == [Rejected(ONE, "no")]


def test_the_end_of_a_gateway_aborts_its_requests_alone(scene) -> None:
    one, two = scene.join(1), scene.join(2)
    one.send(Submit([request(ONE), request(ONE + 1)]))
    two.send(Submit([request(TWO)]))
    scene.channels.receive(1.0)
    scene.channels.send(step([ONE + 1, TWO], [1, 1], finished=[ONE + 1]))
    one.close()
    assert scene.channels.receive(1.0) == [Abort([ONE])]
    scene.channels.send(step([ONE, TWO], [2, 2]))
    assert [frame.tokens for frame in two.frames()] == [[1], [2]]


def test_the_owners_end_is_the_engines(scene) -> None:
    scene.join(1)
    scene.owner.close()
    with pytest.raises(PeerLostError):
        scene.channels.receive(1.0)


@pytest.mark.parametrize("frame", [Submit([request(TWO)]), Abort([TWO]), ForgetTenant("acme", TWO)])
def test_ids_of_others_end_a_connection(scene, frame) -> None:
    one = scene.join(1)
    one.send(frame)
    assert scene.channels.receive(1.0) == []
    with pytest.raises(PeerLostError):
        one.frames()


@pytest.mark.parametrize("frame", [Drain(1.0), Sleep(), Wake()])
def test_the_owner_alone_decides_about_the_engine(scene, frame) -> None:
    scene.join(1).send(frame)
    assert scene.channels.receive(0.01) == []
    scene.owner.send(frame)
    assert scene.channels.receive(1.0) == [frame]


def test_each_gateway_may_have_a_tenant_forgotten_and_gets_the_answer_alone(scene) -> None:
    served = SocketChannel(scene.channels, Pulse(), is_shared=True)
    one, two = scene.join(1), scene.join(2)
    one.send(ForgetTenant("acme", ONE))
    assert served.receive(1.0) == []
    assert served.forgotten == [ForgetTenant("acme", ONE)]
    served.send(Forgotten("acme", 3, ONE))
    assert one.frames() == [Forgotten("acme", 3, ONE)]
    assert two.frames() == scene.owner.frames() == []


def test_each_gateway_that_asks_is_told_of_pages_and_no_other(scene) -> None:
    served = SocketChannel(scene.channels, Pulse(), is_shared=True)
    one, two = scene.join(1), scene.join(2)
    told = PageChanges(b"12345678", b"")
    scene.channels.send(told)
    two.send(TellPages())
    assert list(served.receive(1.0)) == []
    assert served.follows_pages
    scene.channels.send(told)
    scene.owner.send(TellPages())
    served.receive(1.0)
    scene.channels.send(told)
    assert (scene.owner.frames(), one.frames(), two.frames()) == ([told], [], [told, told])
    two.close()
    served.receive(1.0)
    scene.channels.send(told)
    assert scene.owner.frames() == [told]


class Standby:
    def __init__(self) -> None:
        self.sleeps = False

    def sleep(self) -> Asleep:
        self.sleeps = True
        return Asleep(1, 1, 0.0)

    def wake(self) -> Awake:
        self.sleeps = False
        return Awake(0.0)


def test_a_request_that_meets_an_engine_in_standby_is_served_and_leaves_it_there(scene) -> None:
    served = SocketChannel(scene.channels, Pulse(), is_shared=True)
    served.standby = standby = Standby()
    one = scene.join(1)
    scene.owner.send(Sleep())
    assert served.receive(1.0) == []
    served.rest()
    one.send(Submit([request(ONE)]))
    assert len(list(served.receive(1.0))) == 1
    assert not standby.sleeps
    assert served.is_to_sleep
    scene.owner.send(Wake())
    served.receive(1.0)
    assert not served.is_to_sleep
    assert scene.owner.frames()[-1] == Awake(0.0)


def test_who_comes_while_the_engine_loads_hears_of_it() -> None:
    scene = Scene()
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(scene.acceptor, [(1).to_bytes(NUMBER_BYTES, "little")], [theirs.fileno()])
    gateway = Gateway(ours)
    scene.channels.send(Progress("load", 1, 2))
    scene.channels.send(Beat(0.5))
    assert gateway.frames() == [Progress("load", 1, 2), Beat(0.5)]
    scene.gateways.append(gateway)
    scene.close()


def test_what_is_only_announced_is_not_aborted_with_its_gateway(scene) -> None:
    one = scene.join(1)
    one.send(Submit([NewRequest(id=ONE, prompt=bytes(4), sampling=Sampling(), prefetch=True)]))
    scene.channels.receive()
    one.close()
    assert scene.channels.receive() == []


def test_a_frame_of_nested_arrays_is_none(scene) -> None:
    one = scene.join(1)
    body = b"\x93\xa5abort\x90" + b"\x91" * 100_000 + b"\xc0"
    one.channel._sock.sendall(len(body).to_bytes(4, "little") + body)
    scene.channels.receive()
    assert not scene.channels._others
