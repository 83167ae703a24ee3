"""Chat templates rendered in processes of their own: a template is a program that comes with a model and is
not trusted, and one that takes too much time or memory ends its process instead of this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from typing import Any

import msgspec

from firelane import env
from firelane.child_process import Replacements
from firelane.child_process.ending import in_words, is_own_doing
from firelane.child_process.state import is_stopped
from firelane.errors import ProcessDeadError, QueueTimeoutError, RequestError, TokenizerError
from firelane.text.template_limits import TOO_MUCH_WORK
from firelane.text.template_worker import (
    LENGTH_BYTES,
    REFUSED,
    RENDERED,
    TOO_MUCH,
    RenderRequest,
    TemplateSource,
    framed,
)

log = logging.getLogger(__name__)
QUICK_BYTES = 64 << 10
"""A conversation of more waits for other long ones, not in the way of short ones."""
WALL_S = 10.0
"""For one answer: processor time is limited in the process itself."""
START_S = 60.0
"""For the first one: on a busy machine a process starts slowly."""
END_S = 1.0
"""For a process that has closed its socket to end by itself."""
WAIT_S = 5.0
"""For the turn of a conversation."""
REPLACED_WAITS = 6
"""Further waits of that length while the process is being replaced: the machine may be busy."""
STOPPED_S = 1.0
"""Between two looks at whether a process that has not answered is stopped."""
TRIES = 5
"""Processes that one conversation gets, where they are killed from outside or do not answer."""
KIND = "template"
MAX_ANSWER_BYTES = 80 << 20
READ_BYTES = 1 << 18
Frame = bytes | bytearray


class _OverrunError(Exception):
    """The template has taken too much, and ended its process."""


class _LostError(Exception):
    """The process has ended through no fault of its template, or does not answer."""


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
    ) -> None:
        """Starts a process. replaced: notes processes that were lost. Raises TokenizerError when `source` is
        not a template, ProcessDeadError where no process lives long enough to tell."""
        self.source = source
        self._where = where
        first = framed(msgspec.json.encode(TemplateSource(source, constants, where)))
        replaced = replaced or Replacements()
        self._quick, self._slow = _Process(first, replaced), _Process(first, replaced)
        try:
            answer = self._quick.start()
        except _OverrunError:
            raise TokenizerError(
                f"{where} takes too much time or memory to compile: fetch it again"
            ) from None
        if not answer.startswith(RENDERED):
            self.close()
            raise TokenizerError(answer[1:].decode("utf-8", "replace"))
        self.variables = frozenset(msgspec.json.decode(answer[1:], type=list[str]))

    async def render(self, request: Frame) -> str:
        """The prompt's text of an `encoded` conversation. Raises RequestError when the template refuses the
        messages or fails on them, QueueTimeoutError when others keep it busy, ProcessDeadError where process
        after process is lost.
        """
        process = self._quick if len(request) <= QUICK_BYTES else self._slow
        await process.acquire()
        try:
            return _text(await process.ask(request))
        except _OverrunError:
            raise self._given_up(request) from None
        finally:
            process.lock.release()

    def render_blocking(self, request: Frame) -> str:
        """As `render`, for a caller without an event loop."""
        try:
            return _text(self._quick.ask_blocking(request))
        except _OverrunError:
            raise self._given_up(request) from None

    def _given_up(self, request: Frame) -> RequestError:
        log.warning("template_process_ended template=%s conversation_bytes=%d", self._where, len(request))
        return RequestError(TOO_MUCH_WORK)

    def close(self) -> None:
        """End the processes; idempotent."""
        self._quick.close()
        self._slow.close()


class _Process:
    """Started when it is needed, and again when it has ended. What it was asked when it was lost is asked
    again. lock: held by whoever asks."""

    def __init__(self, first: bytes, replaced: Replacements) -> None:
        self.lock = asyncio.Lock()
        self._first, self._replaced = first, replaced
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._is_new = True
        """It has answered nothing yet but that it is there."""

    def start(self) -> bytearray:
        """The answer to the first frame. Raises _OverrunError and ProcessDeadError."""
        for _ in range(TRIES):
            try:
                self._spawn()
                return self._swap_blocking(self._first, START_S)
            except _LostError as error:
                self._replaced.note(KIND, str(error))
        raise _always_lost()

    def ask_blocking(self, request: Frame) -> bytearray:
        """Raises _OverrunError and ProcessDeadError."""
        for _ in range(TRIES):
            try:
                if not self._is_running:
                    self._note_end()
                    self._spawn()
                    self._swap_blocking(self._first, START_S)
                answer = self._swap_blocking(request)
            except _LostError as error:
                self._replaced.note(KIND, str(error))
            else:
                self._is_new = False
                self._replaced.works(KIND)
                return answer
        raise _always_lost()

    async def acquire(self) -> None:
        """Wait for the turn: longer, while the process is being replaced. Raises QueueTimeoutError."""
        for _ in range(1 + REPLACED_WAITS):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await self.lock.acquire()
                    return
            if self.lock.locked() and not self._is_new:
                break
        raise QueueTimeoutError("the chat template is busy: try again later")

    async def ask(self, request: Frame) -> bytearray:
        """Raises _OverrunError and ProcessDeadError."""
        for _ in range(TRIES):
            try:
                if not self._is_running:
                    self._note_end()
                    self._spawn()
                    await self._swap(self._first, START_S)
                answer = await self._swap(request)
            except _LostError as error:
                self._replaced.note(KIND, str(error))
            else:
                self._is_new = False
                self._replaced.works(KIND)
                return answer
        self._replaced.fails(KIND, f"{TRIES} processes in a row were lost")
        raise _always_lost()

    def close(self) -> None:
        process = self._give_up()
        if process is not None:
            process.kill()
            process.wait()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.close()

    @property
    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _note_end(self) -> None:
        """A process that ended while nobody asked it."""
        if self._process is not None:
            self._replaced.note(KIND, in_words(self._process.returncode))

    def _spawn(self) -> None:
        """Raises _LostError."""
        self.close()
        self._is_new = True
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "firelane.text.template_worker"],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=env.for_sandbox(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
                )
            except OSError as error:
                raise _LostError(f"was not started: {error.strerror or error}") from None

    def _give_up(self) -> subprocess.Popen[bytes] | None:
        """The process, which is nobody's now."""
        process, self._process = self._process, None
        if self._sock is not None:
            self._sock.close()
        return process

    async def _swap(self, request: Frame, wall_s: float = WALL_S) -> bytearray:
        """Raises _OverrunError and _LostError."""
        loop, sock = asyncio.get_running_loop(), self._sock
        assert sock is not None
        answer, watch = _Answer(), _StopWatch(loop, self._process)
        try:
            async with asyncio.timeout(wall_s):
                await loop.sock_sendall(sock, request)
                while not answer.is_whole:
                    answer.add(await loop.sock_recv(sock, READ_BYTES))
        except (OSError, TimeoutError, _OverrunError) as error:
            process = self._give_up()
            raise await asyncio.to_thread(_reason_of_end, process, error) from None
        except BaseException:
            self.close()  # its answer must not be taken for that to the next request
            raise
        finally:
            watch.cancel()
        return answer.body

    def _swap_blocking(self, request: Frame, wall_s: float = WALL_S) -> bytearray:
        """Raises _OverrunError and _LostError."""
        sock = self._sock
        assert sock is not None
        answer = _Answer()
        try:
            sock.settimeout(wall_s)
            sock.sendall(request)
            while not answer.is_whole:
                answer.add(sock.recv(READ_BYTES))
            sock.setblocking(False)
        except (OSError, _OverrunError) as error:
            raise _reason_of_end(self._give_up(), error) from None
        except BaseException:
            self.close()
            raise
        return answer.body


class _StopWatch:
    """Kills a process that the system does not run, as long as somebody waits for its answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes] | None) -> None:
        self._loop, self._process = loop, process
        self._timer = loop.call_later(STOPPED_S, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self._process is not None and is_stopped(self._process.pid):
            self._process.kill()
        self._timer = self._loop.call_later(STOPPED_S, self._look)


def _reason_of_end(process: subprocess.Popen[bytes] | None, error: Exception) -> Exception:
    """What became of a process that did not answer: _OverrunError or _LostError. It is ended. error: met
    while the answer was awaited."""
    if process is None:
        return _LostError("was ended by another request")
    if not isinstance(error, TimeoutError):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)  # by itself: its code tells why
    process.kill()
    code = process.wait()
    if isinstance(error, _OverrunError) or is_own_doing(code):
        return _OverrunError()
    if isinstance(error, TimeoutError):
        return _LostError("has not answered in time")
    return _LostError(in_words(code))


def _always_lost() -> ProcessDeadError:
    return ProcessDeadError(f"{TRIES} processes of the chat template were lost: try again later")


class _Answer:
    """A frame as it comes. body: without its length, once it is whole; not copied, it may be large."""

    def __init__(self) -> None:
        self.body = bytearray()
        self._size = -1

    def add(self, data: bytes) -> None:
        """Raises ConnectionError where no more comes, _OverrunError where the answer is too long, or that it
        was too much work."""
        self.body += data
        if self._size < 0 and len(self.body) >= LENGTH_BYTES:
            self._size = int.from_bytes(self.body[:LENGTH_BYTES], "little")
            del self.body[:LENGTH_BYTES]
        ends = self._size > 0 and self.body.startswith(TOO_MUCH)
        if not data:
            raise ConnectionError
        if ends or self._size > MAX_ANSWER_BYTES:
            raise _OverrunError

    @property
    def is_whole(self) -> bool:
        return 0 <= self._size <= len(self.body)


def encoded(messages: list[dict[str, Any]], variables: dict[str, Any]) -> bytearray:
    """A conversation in the form that `render` takes. Raises RequestError."""
    frame = bytearray(LENGTH_BYTES)
    try:
        msgspec.json.Encoder().encode_into(RenderRequest(messages, variables), frame, LENGTH_BYTES)
    except (UnicodeError, TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the messages have no form as JSON: {error}", param="messages") from None
    frame[:LENGTH_BYTES] = (len(frame) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little")
    return frame


def _text(answer: Frame) -> str:
    """Raises RequestError."""
    outcome = answer[:1]
    if outcome == RENDERED:
        return str(memoryview(answer)[1:], "utf-8")
    param = "messages" if outcome == REFUSED else None
    raise RequestError(answer[1:].decode("utf-8", "replace"), param=param)
