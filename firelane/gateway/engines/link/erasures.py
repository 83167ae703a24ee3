"""Answers that an engine owes about the erased pages of tenants."""

from __future__ import annotations

import asyncio

from firelane.wire.frames import Forgotten


class Erasures:
    """Questions of one engine, each until its answer has come or nobody waits for it any more."""

    def __init__(self) -> None:
        self._asked: dict[int, asyncio.Future[int]] = {}

    def expect(self, question: int) -> asyncio.Future[int]:
        """The future has the number of pages that were erased."""
        answer = self._asked[question] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._asked.pop(question, None))
        return answer

    def take(self, frame: Forgotten) -> None:
        answer = self._asked.get(frame.id)
        if answer is not None and not answer.done():
            answer.set_result(frame.pages)
