"""Commands that an engine is given beside its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from firelane.engine_state import EngineLifecycle, LinkState, Sleeping
from firelane.gateway.engines.link.outbox import Outbox
from firelane.wire.adapters import AdapterChange, AdaptersServed
from firelane.wire.frames import Drain, ForgetTenant, Sleep, TellPages, ToEngine, Wake

AnswerT = TypeVar("AnswerT")


class Answers(Generic[AnswerT]):
    """Questions of one kind to one engine, each until its answer has come or nobody waits for it any more."""

    def __init__(self) -> None:
        self._asked: dict[int, asyncio.Future[AnswerT]] = {}

    def expect(self, question: int) -> asyncio.Future[AnswerT]:
        """The future has the answer; it waits for ever where the engine ends before."""
        answer = self._asked[question] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._asked.pop(question, None))
        return answer

    def give_up(self) -> None:
        """Nothing is answered any more: the futures are cancelled."""
        for answer in list(self._asked.values()):
            answer.cancel()

    def take(self, question: int, value: AnswerT) -> None:
        """An answer that nobody waits for changes nothing."""
        answer = self._asked.get(question)
        if answer is not None and not answer.done():
            answer.set_result(value)


class Commands:
    """Commands to one engine. Owned by its link."""

    def __init__(self, lifecycle: EngineLifecycle, outbox: Outbox, send: Callable[[ToEngine], None]) -> None:
        """send: a frame to the engine, or nowhere while there is no connection."""
        self._lifecycle, self._outbox, self._send = lifecycle, outbox, send
        self.erasures: Answers[int] = Answers()
        self.changes: Answers[AdaptersServed] = Answers()

    def sleep(self) -> None:
        """Have the engine go to standby when it has nothing left; new requests wait elsewhere."""
        if self._lifecycle.is_ready:
            self._lifecycle.change(Sleeping())
            self._outbox.flush()
            self._send(Sleep())

    def wake(self) -> None:
        """Have it come back."""
        if self._lifecycle.state is LinkState.STANDBY:
            self._send(Wake())

    def drain(self, timeout_s: float) -> None:
        """Ask the engine to end when it has nothing left, or at the latest after this time."""
        self._lifecycle.retire("the engine is draining")
        self._outbox.flush()
        self._send(Drain(timeout_s))

    def follow_pages(self) -> None:
        """Have the engine tell its pages from now on (PageChanges)."""
        self._send(TellPages())

    def forget_tenant(self, asked: ForgetTenant) -> asyncio.Future[int] | None:
        """Have the engine erase a tenant's pages. The future has their number; None without an
        engine."""
        if self._lifecycle.ready is None:
            return None
        self._send(asked)
        return self.erasures.expect(asked.id)

    def change_adapters(self, asked: AdapterChange) -> asyncio.Future[AdaptersServed] | None:
        """Have the engine load an adapter, or give one up. The future is cancelled where the engine ends
        before it answers; None without an engine."""
        if self._lifecycle.ready is None:
            return None
        self._outbox.flush()
        self._send(asked)
        return self.changes.expect(asked.id)
