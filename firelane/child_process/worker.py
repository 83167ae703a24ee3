"""A child process that answers one request at a time, over a socket. What it was asked when it was lost, its
successor is asked again. A message is a length of four bytes, little-endian, and so many bytes.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from firelane.child_process.child import (
    Child,
    Replacements,
    in_words,
    is_own_doing,
    ready_here,
    ready_on_loop,
)

LENGTH_BYTES = 4
READ_BYTES = 1 << 18


class OverrunError(Exception):
    """A request has ended its process, which crashed or took more than it may, or its answer is too long."""


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def receive(sock: socket.socket) -> bytes:
    """The next request, in the process; b"" where no more comes."""
    data, size = bytearray(), LENGTH_BYTES
    while len(data) < size:
        part = sock.recv(min(size - len(data), READ_BYTES))  # what follows is the next one's
        if not part:
            return b""
        data += part
        if size == LENGTH_BYTES and len(data) >= LENGTH_BYTES:
            size += int.from_bytes(data[:LENGTH_BYTES], "little")
    del data[:LENGTH_BYTES]
    return bytes(data)


class ReplyReader:
    """Frames as they come."""

    def __init__(self, most_bytes: int) -> None:
        self._body = bytearray()
        self._size, self._most_bytes = -1, most_bytes

    def add(self, data: bytes) -> None:
        """Raises ConnectionError where no more comes, OverrunError where the answer is too long."""
        self._body += data
        if not data:
            raise ConnectionError
        self._begin()
        if self._size > self._most_bytes:
            raise OverrunError

    def take(self) -> bytearray:
        """The body of a frame that is whole, without its length; not copied, it may be large."""
        body, rest = self._body, self._body[self._size :]
        del body[self._size :]
        self._body, self._size = rest, -1
        self._begin()
        return body

    def _begin(self) -> None:
        """Read the length, once it is here."""
        if self._size < 0 and len(self._body) >= LENGTH_BYTES:
            self._size = int.from_bytes(self._body[:LENGTH_BYTES], "little")
            del self._body[:LENGTH_BYTES]

    @property
    def is_whole(self) -> bool:
        return 0 <= self._size <= len(self._body)


START_S = 60.0
"""For the first answer: on a busy machine a process starts slowly."""
STOPPED_S = 1.0
"""Between two looks at whether a process that has not answered is stopped."""
END_S = 1.0
"""For a process that has closed its socket to end by itself."""
Frame = bytes | bytearray
Hear = Callable[[bytearray], None]
"""Takes an answer, without its length. An exception of its own ends the process."""
StartWorker = Callable[[], tuple[Child, socket.socket]]
"""Starts a process; returns it and this end of its socket. Raises OSError where the system makes none, and
MachineError where this process will never have one again. Called by several threads."""


class LostError(Exception):
    """The process has ended through no fault of the request, or does not answer. is_late: it had not
    answered in time."""

    is_late = False


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """tries: processes that one request gets; answer_s: for an answer; answer_bytes: of the longest one."""

    tries: int
    answer_s: float
    answer_bytes: int = 80 << 20


class _Waits(NamedTuple):
    """Ways to wait: on an event loop, or with the calling thread, so that a coroutine never yields."""

    ready: Callable[..., Awaitable[bool]]
    end: Callable[[Child], Awaitable[int | None]]


async def _end_here(child: Child) -> int | None:
    return child.end(END_S)


async def _end_in_thread(child: Child) -> int | None:
    import asyncio  # here: engines, which wait in no loop, start without it

    return await asyncio.to_thread(child.end, END_S)


_ON_LOOP = _Waits(ready_on_loop, _end_in_thread)
_HERE = _Waits(ready_here, _end_here)


class Worker:
    """Starts the process when it is needed, and again when it has ended. For one caller at a time."""

    def __init__(
        self,
        kind: str,
        start: StartWorker,
        first: Frame,
        limits: WorkerLimits,
        replaced: Replacements,
    ) -> None:
        """kind: of the process, in logs and metrics; first: what each new process is asked first."""
        self._kind, self._start, self._first = kind, start, first
        self._limits, self._replaced = limits, replaced
        self._child: Child | None = None
        self._sock: socket.socket | None = None
        self.is_new = True
        """The process has answered nothing yet but its first request."""
        self.losses = 0
        """Processes that were lost so far."""

    @property
    def child(self) -> Child | None:
        return self._child

    @property
    def is_lost(self) -> bool:
        """There is no process, or it has ended or is stopped, whether anybody has noticed or not."""
        child = self._child
        return child is None or child.has_ended or child.is_stopped()

    @property
    def waited_s(self) -> float:
        """Time that the process has waited for a processor, as ProcessState tells."""
        return 0.0 if self._child is None else self._child.waited_s()

    def begin(self) -> bytearray:
        """Start the process; its answer to the first request. Raises as `ask`."""
        return _run(self._ask(deque(), _unheard, _HERE))

    def ask_here(self, request: Frame) -> bytearray:
        """Ask one request like `ask`, for a caller without an event loop; its answer."""
        answers: list[bytearray] = []
        _run(self._ask(deque((request,)), answers.append, _HERE))
        return answers[0]

    async def start(self) -> None:
        """Start the process, where there is none. Raises as `ask`."""
        if self._child is None:
            await self._ask(deque(), _unheard, _ON_LOOP)

    async def ask(self, requests: deque[Frame], hear: Hear) -> None:
        """Ask framed requests, all at once. Each that is answered is taken off, and `hear` gets its answer.
        Raises OverrunError, which means the first that is left, and LostError where process after process is
        lost."""
        await self._ask(requests, hear, _ON_LOOP)

    def close(self) -> int | None:
        """End the process; idempotent. Returns its code."""
        child = self._drop()
        return None if child is None else child.end()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.close()

    def _note(self, reason: str) -> None:
        self.losses += 1
        self._replaced.note(self._kind, reason)

    def _drop(self) -> Child | None:
        """The process, which is nobody's now."""
        child, self._child = self._child, None
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        return child

    async def _ask(self, requests: deque[Frame], hear: Hear, waits: _Waits) -> bytearray:
        """The answer to the first request of a process that was started for them."""
        lost, is_start = LostError(), not requests
        for _ in range(self._limits.tries):
            try:
                answer = await self._answer(requests, hear, waits)
            except LostError as error:
                lost = error
                self._note(str(error))
            else:
                if self.is_new:
                    self._replaced.works(self._kind)
                self.is_new = is_start
                return answer
        raise lost

    async def _answer(self, requests: deque[Frame], hear: Hear, waits: _Waits) -> bytearray:
        answer = bytearray()
        if self._child is None or self._child.has_ended:
            if self._child is not None:
                self._note(in_words(self.close()))
            self._spawn()
            await self._swap(deque((self._first,)), answer.extend, START_S, waits)
        if requests:
            await self._swap(requests, hear, self._limits.answer_s, waits)
        return answer

    def _spawn(self) -> None:
        self.is_new = True
        try:
            self._child, self._sock = self._start()
        except OSError as error:
            raise LostError(f"was not started: {error.strerror or error}") from None
        self._sock.setblocking(False)

    async def _swap(self, requests: deque[Frame], hear: Hear, limit_s: float, waits: _Waits) -> None:
        """Raises OverrunError and LostError."""
        child, sock = self._child, self._sock
        assert child is not None
        assert sock is not None
        replies = ReplyReader(self._limits.answer_bytes)
        ready = partial(waits.ready, sock.fileno())
        try:
            await _exchange(child, sock, requests, hear, replies, ready, limit_s)
        except (OSError, OverrunError) as error:
            raise await self._end(error, limit_s, waits) from None
        except BaseException:
            self.close()  # its answer must not be taken for that to the next request
            raise

    async def _end(self, error: Exception, limit_s: float, waits: _Waits) -> Exception:
        """The error of a process that did not answer, which is ended. error: met while the answer was
        awaited."""
        child = self._drop()
        if child is None:
            return LostError("was ended by another request")
        if isinstance(error, TimeoutError):
            child.kill()
        code = await waits.end(child)
        if isinstance(error, TimeoutError):
            lost = LostError(f"has not answered for {limit_s:g} s")
            lost.is_late = True
            return lost
        is_overrun = isinstance(error, OverrunError) or is_own_doing(code)
        return OverrunError() if is_overrun else LostError(in_words(code))


async def _exchange(
    child: Child,
    sock: socket.socket,
    requests: deque[Frame],
    hear: Hear,
    replies: ReplyReader,
    ready: Callable[..., Awaitable[bool]],
    limit_s: float,
) -> None:
    """Send, then receive; limit_s: for each answer. A process that the system does not run is killed. Raises
    OSError, of which TimeoutError is one, and OverrunError."""
    ends_at_s = time.monotonic() + limit_s
    with memoryview(requests[0] if len(requests) == 1 else b"".join(requests)) as unsent:
        at = 0
        while requests:
            try:
                if at < len(unsent):
                    at += sock.send(unsent[at:])
                    continue
                replies.add(sock.recv(READ_BYTES))
                while replies.is_whole:
                    answer = replies.take()
                    requests.popleft()
                    ends_at_s = time.monotonic() + limit_s
                    hear(answer)
            except BlockingIOError:
                left_s = ends_at_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError from None
                is_writing = at < len(unsent)
                is_ready = await ready(is_writing=is_writing, timeout_s=min(left_s, STOPPED_S))
                if not is_ready and child.is_stopped():
                    child.kill()


def _unheard(answer: bytearray) -> None:
    """Hear an answer that nobody has asked for."""
    del answer


def _run(work: Coroutine[Any, Any, bytearray]) -> bytearray:
    """The result of a coroutine that does not wait for an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")
