"""Fake engines behind one ReplicaSet, and sinks of their requests."""

from __future__ import annotations

import asyncio

from fake_engine import FakeEngine

from firelane.engine_state import LinkState
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import Resume
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.wire.frames import NewRequest, Sampling

ANSWER = list(range(10, 40))


class Sink:
    def __init__(self):
        self.tokens = []
        self.ended = False
        self.error = None
        self.started = 0

    def on_started(self, *_):
        self.started += 1

    def on_tokens(self, tokens, _):
        self.tokens += tokens

    def on_logprobs(self, entry):
        pass

    def on_waiting(self):
        pass

    def ending(self, finished):
        pass

    def on_end(self):
        self.ended = True

    def on_failed(self, error):
        self.error = error


class Scene:
    """Two fake engines, stepped by hand, behind one ReplicaSet."""

    def __init__(self, recovery=None, count=2, router=None, expects_first=False):
        self.set = ReplicaSet(recovery=recovery or Resume(), router=router, expects_first=expects_first)
        self.links, self.engines = [], []
        for i in range(count):
            self.add(str(i))

    def add(self, name):
        self.links.append(EngineLink(name=name))
        self.engines.append(FakeEngine(lambda *_: ANSWER, 100, held=True))
        self.set.add(self.links[-1])

    async def bring_up(self, index, **changes):
        link, engine = self.links[index], self.engines[index]
        await link.attach(engine.connect())
        engine.send(engine.ready(**changes))
        await until(lambda: link.state is not LinkState.STARTING)

    async def submit(self, tokens=4, prompt=b"", adapter="", version="", **sampling):
        sink = Sink()
        request = NewRequest(
            id=self.set.next_id(),
            prompt=prompt or b"\1\0\0\0" * tokens,
            sampling=Sampling(**{"max_tokens": len(ANSWER)} | sampling),
            adapter=adapter,
        )
        self.set.submit(request, sink, version=version)
        await asyncio.sleep(0.002)
        return request.id, sink

    def where(self):
        return [sorted(engine.running) for engine in self.engines]

    async def finish(self, *sinks):
        while not all(sink.ended for sink in sinks):
            for engine in self.engines:
                if engine.sock is not None and engine.sock.fileno() >= 0 and engine.running:
                    engine.step()
            await asyncio.sleep(0.001)

    def close(self):
        self.set.close()
        for engine in self.engines:
            if engine.sock is not None:
                engine.die()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def play(scenario, **options):
    async def run():
        scene = Scene(**options)
        for i in range(len(scene.links)):
            await scene.bring_up(i)
        try:
            await asyncio.wait_for(scenario(scene), 120)
        finally:
            scene.close()

    asyncio.run(run())


def work(link):
    return link.load.prefill_tokens + link.load.sequences
