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
from firelane.errors import QueueTimeoutError, RequestError, TokenizerError
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
WAIT_S = 5.0
MAX_ANSWER_BYTES = 80 << 20
READ_BYTES = 1 << 18
Frame = bytes | bytearray


class _EndedError(Exception):
    """The process has ended, or was given up."""


class TemplateRenderer:
    """One model's template. Owns its processes. variables: what the template asks for beyond what it sets
    itself.
    """

    def __init__(self, source: str, constants: dict[str, str], where: str = "chat template") -> None:
        """Starts a process. Raises TokenizerError when `source` is not a template."""
        self.source = source
        self._where = where
        first = framed(msgspec.json.encode(TemplateSource(source, constants, where)))
        self._quick, self._slow = _Process(first), _Process(first)
        try:
            answer = self._quick.start()
        except _EndedError:
            raise TokenizerError(
                f"{where} takes too much time or memory to compile: fetch it again"
            ) from None
        if not answer.startswith(RENDERED):
            self.close()
            raise TokenizerError(answer[1:].decode("utf-8", "replace"))
        self.variables = frozenset(msgspec.json.decode(answer[1:], type=list[str]))

    async def render(self, request: Frame) -> str:
        """The prompt's text of an `encoded` conversation. Raises RequestError when the template refuses the
        messages or fails on them, QueueTimeoutError when others keep it busy.
        """
        process = self._quick if len(request) <= QUICK_BYTES else self._slow
        try:
            async with asyncio.timeout(WAIT_S):
                await process.lock.acquire()
        except TimeoutError:
            raise QueueTimeoutError("the chat template is busy: try again later") from None
        try:
            return _text(await process.ask(request))
        except _EndedError:
            raise self._given_up(request) from None
        finally:
            process.lock.release()

    def render_blocking(self, request: Frame) -> str:
        """As `render`, for a caller without an event loop."""
        try:
            return _text(self._quick.ask_blocking(request))
        except _EndedError:
            raise self._given_up(request) from None

    def _given_up(self, request: Frame) -> RequestError:
        log.warning("template_process_ended template=%s conversation_bytes=%d", self._where, len(request))
        return RequestError(TOO_MUCH_WORK)

    def close(self) -> None:
        """End the processes; idempotent."""
        self._quick.close()
        self._slow.close()


class _Process:
    """Started when it is needed, and again when it has ended. lock: held by whoever asks."""

    def __init__(self, first: bytes) -> None:
        self.lock = asyncio.Lock()
        self._first = first
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None

    def start(self) -> bytearray:
        """The answer to the first frame. Raises _EndedError."""
        self._spawn()
        return self._swap_blocking(self._first, START_S)

    def ask_blocking(self, request: Frame) -> bytearray:
        """Raises _EndedError."""
        if not self._is_running:
            self.start()
        return self._swap_blocking(request)

    async def ask(self, request: Frame) -> bytearray:
        """Raises _EndedError."""
        if not self._is_running:
            self._spawn()
            await self._swap(self._first, START_S)
        return await self._swap(request)

    def close(self) -> None:
        process = self._give_up()
        if process is not None:
            process.wait()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.close()

    @property
    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _spawn(self) -> None:
        self.close()
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "firelane.text.template_worker"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env.for_sandbox(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            )

    def _give_up(self) -> subprocess.Popen[bytes] | None:
        """Killed, but not yet waited for."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        if self._sock is not None:
            self._sock.close()
        return process

    async def _swap(self, request: Frame, wall_s: float = WALL_S) -> bytearray:
        loop, sock = asyncio.get_running_loop(), self._sock
        assert sock is not None
        answer = _Answer()
        try:
            async with asyncio.timeout(wall_s):
                await loop.sock_sendall(sock, request)
                while not answer.is_whole:
                    answer.add(await loop.sock_recv(sock, READ_BYTES))
        except (OSError, TimeoutError):
            process = self._give_up()
            if process is not None:
                await asyncio.to_thread(process.wait)
            raise _EndedError from None
        except BaseException:
            self.close()  # its answer must not be taken for that to the next request
            raise
        return answer.body

    def _swap_blocking(self, request: Frame, wall_s: float = WALL_S) -> bytearray:
        sock = self._sock
        assert sock is not None
        answer = _Answer()
        try:
            sock.settimeout(wall_s)
            sock.sendall(request)
            while not answer.is_whole:
                answer.add(sock.recv(READ_BYTES))
            sock.setblocking(False)
        except OSError:
            self.close()
            raise _EndedError from None
        except BaseException:
            self.close()
            raise
        return answer.body


class _Answer:
    """A frame as it comes. body: without its length, once it is whole; not copied, it may be large."""

    def __init__(self) -> None:
        self.body = bytearray()
        self._size = -1

    def add(self, data: bytes) -> None:
        """Raises ConnectionError where no more comes, or too much, or where the process ends with it."""
        self.body += data
        if self._size < 0 and len(self.body) >= LENGTH_BYTES:
            self._size = int.from_bytes(self.body[:LENGTH_BYTES], "little")
            del self.body[:LENGTH_BYTES]
        ends = self._size > 0 and self.body.startswith(TOO_MUCH)
        if not data or ends or self._size > MAX_ANSWER_BYTES:
            raise ConnectionError

    @property
    def is_whole(self) -> bool:
        return 0 <= self._size <= len(self.body)


def encoded(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], variables: dict[str, Any]
) -> bytearray:
    """A conversation in the form that `render` takes. Raises RequestError."""
    frame = bytearray(LENGTH_BYTES)
    try:
        msgspec.json.Encoder().encode_into(RenderRequest(messages, tools, variables), frame, LENGTH_BYTES)
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
