"""Residence of a model whose engines another process owns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from firelane.errors import EngineDeadError
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.processes.control import Resident, Used, Want, WantReply

USED_S = 0.5
"""Between two reports that requests come."""
POLL_S = 0.002


class RemoteResidence:
    """The residence of a model that another process owns. What the owner said last of the model; `send` tells
    it what requests want."""

    def __init__(
        self,
        model: str,
        engines: ReplicaSet,
        send: Callable[[Want | Used], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._engines, self._send, self._clock = model, engines, send, clock
        self._known = Resident(model=model)
        self._waiting: dict[int, asyncio.Future[WantReply]] = {}
        self._turn = 0
        self._told: tuple[float | None, float] = (None, -USED_S)

    def update(self, known: Resident) -> None:
        self._known = known

    @property
    def is_cold(self) -> bool:
        return self._known.is_cold

    @property
    def state(self) -> str:
        return self._known.state

    @property
    def reason(self) -> str:
        return self._known.reason

    @property
    def left_s(self) -> int:
        return self._known.left_s

    @property
    def leaves(self) -> bool:
        return self._known.leaves

    @property
    def deadline_s(self) -> float:
        return self._known.deadline_s

    def used(self, keep_s: float | None) -> None:
        kept_s, told_s = self._told
        now_s = self._clock()
        if keep_s != kept_s or now_s - told_s >= USED_S:
            self._told = keep_s, now_s
            self._send(Used(self._model, keep_s))

    async def want(self) -> None:
        """Return when the model serves, and this process has a connection to its engine."""
        self._turn += 1
        turn, answer = self._turn, asyncio.get_running_loop().create_future()
        self._waiting[turn] = answer
        try:
            self._send(Want(turn, self._model))
            told = await answer
        finally:
            del self._waiting[turn]
        if told.error:
            raise EngineDeadError(told.error, retry_after_s=told.retry_after_s)
        while self._engines.takes is None:
            await asyncio.sleep(POLL_S)

    async def changed(self) -> None:
        """Nobody follows it."""
        await asyncio.get_running_loop().create_future()

    def answered(self, answer: WantReply) -> None:
        waiting = self._waiting.get(answer.turn)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
