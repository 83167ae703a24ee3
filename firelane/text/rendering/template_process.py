"""Chat templates rendered in processes of their own: a template is a program that comes with a model and is
not trusted, and one that takes too much time or memory ends its process instead of this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from firelane import env
from firelane.child_process import Child, Replacements
from firelane.child_process.child import SILENT
from firelane.child_process.worker import (
    LENGTH_BYTES,
    Frame,
    LostError,
    OverrunError,
    Worker,
    WorkerLimits,
    framed,
)
from firelane.errors import ProcessDeadError, QueueTimeoutError, RequestError, TokenizerError
from firelane.text.rendering.kept_trials import KeptTrials
from firelane.text.rendering.template_worker import REFUSED, RENDERED, TOO_MUCH, RenderRequest, TemplateSource
from firelane.text.template_limits import TOO_MUCH_WORK

log = logging.getLogger(__name__)
QUICK_BYTES = 64 << 10
"""A conversation of more waits for other long ones, not in the way of short ones."""
LIMITS = WorkerLimits(tries=5, answer_s=10.0, answer_bytes=80 << 20)
"""Processor time is limited in the process itself. More than one try is for processes that are killed from
outside or do not answer."""
WAIT_S = 5.0
"""For the turn of a conversation."""
WAIT_TICKS = 10
"""Parts of a wait. They are counted, not the time: where this process itself has not run for seconds, one
part is over, and not all of them."""
FURTHER_WAITS = 6
"""More waits of that length, where the process is replaced meanwhile, or waits for a processor itself."""
STARVED_SHARE = 0.5
"""Part of a wait that it has to have waited for a processor."""
MOST_AT_ONCE = 16
"""Conversations that the process is asked for at once: an event loop that has much to do comes back to each
seldom."""
KIND = "template"
MODULE = "firelane.text.rendering.template_worker"


class TemplateRenderer:
    """One model's template. Owns its processes. variables: what the template asks for beyond what it sets
    itself.
    """

    def __init__(
        self,
        source: str,
        constants: dict[str, str],
        where: str = "chat template",
        replaced: Replacements | None = None,
        trials_dir: Path | None = None,
    ) -> None:
        """Starts a process, unless an earlier start has left in `trials_dir` what it would be asked.
        replaced: notes processes that were lost. Raises TokenizerError when `source` is not a template,
        ProcessDeadError where no process lives long enough to tell."""
        self.source = source
        self._where, self._trials = where, KeptTrials(trials_dir, source, constants)
        first = framed(msgspec.json.encode(TemplateSource(source, constants, where)))
        self._replaced = replaced or Replacements()
        self._quick, self._slow = _Process(first, self._replaced), _Process(first, self._replaced)
        known = self._trials.variables
        self.variables = self._begin() if known is None else known

    def _begin(self) -> frozenset[str]:
        """Variables of the template, as its first process tells them. Raises as the constructor."""
        try:
            answer = self._quick.worker.begin()
        except LostError:
            raise _always_lost() from None
        except OverrunError:
            answer = bytearray(TOO_MUCH)
        if not answer.startswith(RENDERED):
            self.close()
        if answer.startswith(TOO_MUCH):
            raise TokenizerError(f"{self._where} takes too much time or memory to compile: fetch it again")
        if not answer.startswith(RENDERED):
            raise TokenizerError(answer[1:].decode("utf-8", "replace"))
        return frozenset(msgspec.json.decode(answer[1:], type=list[str]))

    async def start(self) -> None:
        """Start the process that the first conversation needs, where there is none."""
        with contextlib.suppress(OverrunError, LostError):  # the next conversation tells it
            async with self._quick.lock:
                await self._quick.worker.start()

    def trial(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """The prompt's text, as `render_blocking` tells it, or did at an earlier start."""
        request = encoded(messages, variables)
        return self._trials.answer(request, lambda: self.render_blocking(request))

    def keep_trials(self) -> None:
        """Leave to the next start what was asked by `trial`."""
        self._trials.keep(self.variables)

    async def render(self, request: Frame) -> str:
        """The prompt's text of an `encoded` conversation. Raises RequestError when the template refuses the
        messages or fails on them, QueueTimeoutError when others keep it busy, ProcessDeadError where process
        after process is lost.
        """
        process = self._quick if len(request) <= QUICK_BYTES else self._slow
        try:
            answer = await process.ask(request)
        except (OverrunError, LostError) as error:
            raise self._failed(error, request) from None
        return self._text(answer, request)

    def render_blocking(self, request: Frame) -> str:
        """Render like `render`, for a caller without an event loop."""
        try:
            answer = self._quick.worker.ask_here(request)
        except (OverrunError, LostError) as error:
            raise self._failed(error, request) from None
        if answer.startswith(TOO_MUCH):
            self._quick.worker.close()  # it ends
        return self._text(answer, request)

    def close(self) -> None:
        """End the processes; idempotent."""
        self._quick.close()
        self._slow.close()

    def _text(self, answer: Frame, request: Frame) -> str:
        """Raises RequestError."""
        outcome = answer[:1]
        if outcome == RENDERED:
            return str(memoryview(answer)[1:], "utf-8")
        if outcome == TOO_MUCH:
            raise self._failed(OverrunError(), request)
        param = "messages" if outcome == REFUSED else None
        raise RequestError(answer[1:].decode("utf-8", "replace"), param=param)

    def _failed(self, error: OverrunError | LostError, request: Frame) -> RequestError | ProcessDeadError:
        if isinstance(error, LostError):
            self._replaced.fails(KIND, f"{LIMITS.tries} processes in a row were lost")
            return _always_lost()
        log.warning("template_process_ended template=%s conversation_bytes=%d", self._where, len(request))
        return RequestError(TOO_MUCH_WORK)


class _EndsError(Exception):
    """The process ends with the answer that it has given."""


class _Asked:
    """A conversation that waits for its text. is_taken: the process has it."""

    def __init__(self, request: Frame) -> None:
        self.request, self.is_taken = request, False
        self.answer: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()

    def hear(self, answer: bytearray) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Process:
    """A process, and the conversations that wait for it, which it is asked for several at once."""

    def __init__(self, first: bytes, replaced: Replacements) -> None:
        self.worker = Worker(KIND, _start, first, LIMITS, replaced)
        self.lock = asyncio.Lock()
        self._waiting: deque[_Asked] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, request: Frame) -> bytearray:
        """Raises OverrunError, LostError, and QueueTimeoutError where others keep it busy."""
        asked = _Asked(request)
        self._waiting.append(asked)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._answer_all())
        try:
            await self._until_taken(asked)
            return await asked.answer
        finally:
            asked.answer.cancel()

    def close(self) -> None:
        """End it; idempotent."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self.worker.close()

    async def _until_taken(self, asked: _Asked) -> None:
        """Or answered. Wait longer where others are not what keeps the process busy. Raises
        QueueTimeoutError."""
        worker = self.worker
        for _ in range(1 + FURTHER_WAITS):
            losses, waited_s = worker.losses, None
            for _ in range(WAIT_TICKS):
                done, _ = await asyncio.wait((asked.answer,), timeout=WAIT_S / WAIT_TICKS)
                if done or asked.is_taken:
                    return
                if waited_s is None:  # nearly all are taken before, and it takes long to read
                    waited_s = worker.waited_s
            is_replaced = worker.losses > losses or worker.is_new or worker.is_lost
            is_starved = worker.waited_s - (waited_s or 0.0) > STARVED_SHARE * WAIT_S
            if not (is_replaced or is_starved):
                break
        raise _busy()

    async def _answer_all(self) -> None:
        while self._waiting:
            async with self.lock:
                asked = self._taken()
                try:
                    await self._answer(asked)
                except LostError as error:
                    _fail(asked, error)
                except BaseException:
                    _fail((*asked, *self._waiting), LostError())
                    raise

    def _taken(self) -> deque[_Asked]:
        """The conversations that are asked for next: several short ones, or a long one."""
        taken, size = deque[_Asked](), 0
        while self._waiting and len(taken) < MOST_AT_ONCE:
            size += len(self._waiting[0].request)
            if taken and size > QUICK_BYTES:
                break
            asked = self._waiting.popleft()
            if not asked.answer.done():
                asked.is_taken = True
                taken.append(asked)
        return taken

    async def _answer(self, asked: deque[_Asked]) -> None:
        """Take off each that is answered, or that has ended its process. Raises LostError."""

        def hear(answer: bytearray) -> None:
            asked.popleft().hear(answer)
            if answer.startswith(TOO_MUCH):
                raise _EndsError

        while asked:
            try:
                await self.worker.ask(deque(one.request for one in asked), hear)
            except OverrunError as error:
                asked.popleft().fail(error)
            except _EndsError:
                continue  # the others go to its successor


def _fail(asked: Iterable[_Asked], error: Exception) -> None:
    for one in asked:
        one.fail(error)


def _start() -> tuple[Child, socket.socket]:
    environ = env.for_sandbox(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    return Child.connected([MODULE], environ, streams=SILENT)


def _busy() -> QueueTimeoutError:
    return QueueTimeoutError("the chat template is busy: try again later")


def _always_lost() -> ProcessDeadError:
    return ProcessDeadError(f"{LIMITS.tries} processes of the chat template were lost: try again later")


def encoded(messages: list[dict[str, Any]], variables: dict[str, Any]) -> bytearray:
    """A conversation in the form that `render` takes. Raises RequestError."""
    frame = bytearray(LENGTH_BYTES)
    try:
        msgspec.json.Encoder().encode_into(RenderRequest(messages, variables), frame, LENGTH_BYTES)
    except (UnicodeError, TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the messages have no form as JSON: {error}", param="messages") from None
    frame[:LENGTH_BYTES] = (len(frame) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little")
    return frame
