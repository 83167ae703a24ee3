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
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from firelane import env
from firelane.child_process import Child, Replacements
from firelane.child_process.child import SILENT
from firelane.child_process.frames import LENGTH_BYTES, OverrunError, framed
from firelane.child_process.worker import Frame, LostError, Worker, WorkerLimits
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
FURTHER_WAITS = 6
"""More waits of that length, where the process is replaced meanwhile, or waits for a processor itself."""
STARVED_SHARE = 0.5
"""Part of a wait that it has to have waited for a processor."""
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
        with contextlib.suppress(OverrunError, LostError, QueueTimeoutError):  # the next one tells it
            async with self._quick.turn():
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
        async with process.turn():
            try:
                answer = await process.worker.ask(request)
            except (OverrunError, LostError) as error:
                raise self._failed(error, request) from None
            return self._text(process, answer, request)

    def render_blocking(self, request: Frame) -> str:
        """Render like `render`, for a caller without an event loop."""
        try:
            answer = self._quick.worker.ask_here(request)
        except (OverrunError, LostError) as error:
            raise self._failed(error, request) from None
        return self._text(self._quick, answer, request)

    def close(self) -> None:
        """End the processes; idempotent."""
        self._quick.worker.close()
        self._slow.worker.close()

    def _text(self, process: _Process, answer: Frame, request: Frame) -> str:
        """Raises RequestError."""
        outcome = answer[:1]
        if outcome == RENDERED:
            return str(memoryview(answer)[1:], "utf-8")
        if outcome == TOO_MUCH:
            process.worker.close()  # it ends
            raise self._failed(OverrunError(), request)
        param = "messages" if outcome == REFUSED else None
        raise RequestError(answer[1:].decode("utf-8", "replace"), param=param)

    def _failed(self, error: OverrunError | LostError, request: Frame) -> RequestError | ProcessDeadError:
        if isinstance(error, LostError):
            self._replaced.fails(KIND, f"{LIMITS.tries} processes in a row were lost")
            return _always_lost()
        log.warning("template_process_ended template=%s conversation_bytes=%d", self._where, len(request))
        return RequestError(TOO_MUCH_WORK)


class _Process:
    """A process, and the turns of those who ask it."""

    def __init__(self, first: bytes, replaced: Replacements) -> None:
        self.worker = Worker(KIND, _start, first, LIMITS, replaced)
        self.lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait for it: longer, where others are not what keeps it busy. Raises QueueTimeoutError."""
        worker = self.worker
        for _ in range(1 + FURTHER_WAITS):
            losses, waited_s = worker.losses, worker.waited_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await self.lock.acquire()
                    break
            is_replaced = worker.losses > losses or worker.is_new or worker.is_lost
            is_starved = worker.waited_s - waited_s > STARVED_SHARE * WAIT_S
            if self.lock.locked() and not (is_replaced or is_starved):
                raise _busy()
        else:
            raise _busy()
        try:
            yield
        finally:
            self.lock.release()


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
