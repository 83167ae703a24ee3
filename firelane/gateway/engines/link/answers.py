"""Answers that an engine owes."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

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
