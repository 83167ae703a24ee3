"""Engines without a model behind real hosts, and a gateway's replicas in front of them."""

from __future__ import annotations

import array
import asyncio
import contextlib
import socket

import uvloop

from firelane.cluster.addresses import Address, Place
from firelane.cluster.dial import dial
from firelane.cluster.host import EngineHost
from firelane.cluster.remote_fleet import BackOff, RemoteFleet
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import Resume
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.link.framing import FrameReader, encode
from firelane.link.greeting import hello as hello_with
from firelane.wire.frames import (
    PROTOCOL_VERSION,
    EngineStats,
    Finished,
    ForgetTenant,
    Forgotten,
    NewRequest,
    Ready,
    Sampling,
    Started,
    StepFrame,
    Submit,
    ToEngine,
)
from firelane.wire.numbers import number_of

HELLO = hello_with(PROTOCOL_VERSION, "1", "m")
SOON = BackOff(first_s=0.01, most_s=0.01)
PATIENCE_S = 120.0


def ready(identity="same", **pages):
    """pages: role, engine_id and pages_address."""
    sizes = dict.fromkeys(("vocab_size", "max_model_len", "block_size", "num_blocks"), 64)
    return Ready(
        protocol=PROTOCOL_VERSION,
        pid=1,
        model="m",
        max_num_seqs=4,
        weights_bytes=1,
        kv_bytes=1,
        load_s=0.0,
        identity=identity,
        **sizes,
        **pages,
    )


class Engine:
    """An engine behind an acceptor: it says Ready on each connection, and keeps what it is sent."""

    def __init__(self, host, identity="same", **pages):
        self._pages = pages
        ours, self._acceptor = socket.socketpair()
        self._acceptor.setblocking(False)
        self.identity, self.numbers, self.socks, self.requests = identity, [], {}, []
        asyncio.get_running_loop().add_reader(self._acceptor, self._admit)
        host.take_engine(ours)

    def _admit(self):
        data, control, _, _ = self._acceptor.recvmsg(4, socket.CMSG_SPACE(4))
        if not data:
            self.die()
            return
        sock = socket.socket(fileno=array.array("i", control[0][2])[0])
        number = int.from_bytes(data, "little")
        self.numbers.append(number)
        self.socks[number] = sock
        sock.setblocking(False)
        reader = FrameReader(ToEngine)
        asyncio.get_running_loop().add_reader(sock, self._read, number, reader)
        sock.send(encode(ready(self.identity, **self._pages)))

    def _read(self, number, reader):
        sock = self.socks[number]
        data = sock.recv(1 << 16)
        if not data:
            self.end(number)
            return
        for frame in reader.feed(data):
            if isinstance(frame, Submit):
                self.requests += frame.requests
            elif isinstance(frame, ForgetTenant):
                assert number_of(frame.id) == number
                sock.send(encode(Forgotten(frame.tenant, 5, frame.id)))

    def answer(self, request_id, tokens, reason=None):
        ids = [request_id] * len(tokens)
        finished = [Finished(request_id, reason)] if reason else []
        for one, token in zip(ids, tokens, strict=True):
            last = finished if token == tokens[-1] else []
            frame = StepFrame(1, [one], [token], [Started(one, 0)], last, [], EngineStats())
            self.socks[number_of(request_id)].send(encode(frame))

    def end(self, number):
        sock = self.socks.pop(number, None)
        if sock is not None:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()

    def die(self):
        for number in list(self.socks):
            self.end(number)
        if self._acceptor.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._acceptor)
            self._acceptor.close()


class Sink:
    def __init__(self):
        self.tokens, self.ended, self.error = [], False, None

    def on_started(self, cached_tokens, planned_s):
        pass

    def ending(self, finished):
        pass

    def on_waiting(self):
        pass

    def on_tokens(self, tokens, _):
        self.tokens += tokens

    def on_end(self):
        self.ended = True

    def on_failed(self, error):
        self.error = error


class Places:
    """A NameDiscovery whose finds a test sets."""

    def __init__(self, places):
        self.places = places

    async def find(self):
        if isinstance(self.places, OSError):
            raise self.places
        return list(self.places)


class World:
    """Hosts with an engine each, and a gateway's replicas."""

    def __init__(self, stack, router=None):
        self.stack, self.hosts, self.engines, self.places = stack, [], [], []
        self.replicas = ReplicaSet([], Resume(), router=router)
        self.readies = []
        self.discovery = Places([])
        self.context = None

    async def host(self, hello=HELLO, context=None, identity="same", **pages):
        host = EngineHost(hello, lambda: context)
        self.stack.push_async_callback(host.close)
        port = await host.listen(Address("127.0.0.1", 0))
        engine = Engine(host, identity, **pages)
        self.stack.callback(engine.die)
        self.hosts.append(host)
        self.engines.append(engine)
        self.places.append(Place(Address("127.0.0.1", port), "localhost"))

    async def connect(self, hello=HELLO, context=None):
        self.discovery.places = self.places
        self.fleet = RemoteFleet(self.discovery, lambda place: dial(place, hello, context), SOON)
        self.stack.push_async_callback(self.fleet.stop)
        await self.fleet.connect(self)

    def add(self, name):
        link = EngineLink(name=name, tell=self._hear, is_shared=True)
        self.replicas.add(link)
        return link

    def remove(self, link):
        self.replicas.remove(link)

    def _hear(self, link, event):
        if isinstance(event, Ready):
            self.readies.append(link.name)

    async def serving(self, count):
        await until(lambda: len(self.replicas.serving) == count)

    def submit(self, tokens=4):
        sink = Sink()
        request = NewRequest(
            id=self.replicas.next_id(), prompt=b"\1\0\0\0" * tokens, sampling=Sampling(max_tokens=9)
        )
        self.replicas.submit(request, sink)
        return request.id, sink


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def play(scenario, router=None):
    async def inner():
        async with contextlib.AsyncExitStack() as stack:
            await scenario(World(stack, router))

    uvloop.run(inner())
