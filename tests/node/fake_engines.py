"""Engines of a node that are no processes: they do as they are told, at once or when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firelane.engine_state import EngineEvent, EngineExit, Exited
from firelane.errors import FirelaneError, MachineError
from firelane.node.model import NodeModel
from firelane.node.node import Node
from firelane.node.policy import ModelPolicy, NodePolicy
from firelane.node.states import State
from firelane.wire.frames import Asleep, Awake
from tests.ready_frame import READY


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakeEngines:
    """refuses: why a start fails. at_once: a start, a wake or a sleep is over when it has begun."""

    def __init__(self, node: Node, *, ready_bytes: int = 0, can_sleep: bool = True) -> None:
        self.node, self.ready_bytes, self.can_sleep = node, ready_bytes, can_sleep
        self.standby_bytes = 1
        self.requests = 0
        self.serves = False
        self.at_once = True
        self.refuses = ""
        self.calls: list[str] = []
        self.model: NodeModel

    @property
    def is_busy(self) -> bool:
        return self.requests > 0

    @property
    def are_asleep(self) -> bool:
        return not self.serves

    @property
    def are_awake(self) -> bool:
        return self.serves

    def tell(self, event: EngineEvent) -> None:
        self.node.apply(self.model, event)

    async def start(self) -> None:
        self.calls.append("start")
        if self.refuses:
            raise MachineError(self.refuses)
        if self.at_once:
            self.become_ready()

    def become_ready(self) -> None:
        self.serves = True
        self.tell(READY)

    async def stop(self) -> None:
        self.calls.append("stop")
        self.serves = False

    def sleep(self) -> None:
        assert not self.requests, "a model with requests is put to sleep"
        self.calls.append("sleep")
        self.serves = False
        if self.at_once:
            self.tell(Asleep(1, 0, 0.0))

    def wake(self) -> None:
        self.calls.append("wake")
        if self.at_once:
            self.awake()

    def awake(self) -> None:
        self.serves = True
        self.tell(Awake(0.0))

    def die(self) -> None:
        self.serves = False
        self.tell(Exited(EngineExit(pid=1, return_code=1, lived_s=1.0)))


class FakeFiles:
    """Files of a source that has to be pulled. waits: a pull ends when the test says so. refuses: why it
    fails."""

    def __init__(self, *, are_here: bool = False) -> None:
        self.are_here = are_here
        self.refuses = ""
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.calls: list[str] = []

    def look(self) -> None: ...

    async def pull(self, on_progress: Callable[[int, int], None], *, whole: bool) -> None:
        self.calls.append("pull whole" if whole else "pull")
        on_progress(5, 10)
        await self.goes_on.wait()
        if self.refuses:
            raise FirelaneError(self.refuses)
        self.are_here = True

    async def remove(self) -> int:
        self.calls.append("remove")
        if self.refuses:
            raise FirelaneError(self.refuses)
        self.are_here = False
        return 10


class FakeNode(Node):
    """Its models are of 10 bytes each, if a test does not say otherwise."""

    def __init__(self, budget_bytes: int | None = None, **policy: float) -> None:
        self.clock = Clock()
        super().__init__(
            NodePolicy(budget_bytes=budget_bytes, **{"min_residence_s": 0.0, **policy}), clock=self.clock
        )

    def make(
        self,
        name: str,
        *,
        ready_bytes: int = 10,
        can_sleep: bool = True,
        files: FakeFiles | None = None,
        **policy,
    ) -> FakeEngines:
        engines = FakeEngines(self, ready_bytes=ready_bytes, can_sleep=can_sleep)
        engines.model = NodeModel(name, engines, ModelPolicy(**policy), files=files, clock=self.clock)
        self.add(engines.model)
        return engines

    def states(self) -> dict[str, State]:
        return {model.name: model.state for model in self}
