"""Images decoded in a process of their own: what a client sends is not trusted, and an image that takes too
much time or memory ends that process instead of this one."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import deque
from importlib.util import find_spec

import msgspec

from firelane import env
from firelane.child_process import Child, Replacements
from firelane.child_process.child import SILENT
from firelane.child_process.worker import LostError, OverrunError, Worker, WorkerLimits, framed
from firelane.errors import ProcessDeadError, QueueTimeoutError, RequestError
from firelane.text.images.image_worker import DECODED, REFUSED, DecodeRequest
from firelane.text.images.sources import ImageSource
from firelane.wire.images import Image, ImageFormat

LIMITS = WorkerLimits(tries=2, answer_s=20.0, answer_bytes=64 << 20)
WAIT_S = 20.0
"""Seconds until it is the turn of an image."""
LOW_ROWS = 256
"""Rows of an image of which few are enough."""
KIND = "image"
MODULE = "firelane.text.images.image_worker"
TOO_MUCH_WORK = "it takes too much time or memory to decode: make it smaller"


class ImageDecoder:
    """Owns the process, which is started with the first image. Images take turns."""

    def __init__(self, replaced: Replacements) -> None:
        """replaced: notes processes that were lost."""
        self._worker = Worker(KIND, _start, framed(b""), LIMITS, replaced)
        self._turn = asyncio.Lock()

    async def decode(self, source: ImageSource, taken: ImageFormat, where: str) -> Image:
        """The pixels as a model takes them; they stand nowhere yet. Raises RequestError for an image that is
        not taken, QueueTimeoutError when others keep the process busy, ProcessDeadError where process after
        process is lost."""
        _check_decoders()
        most = taken.max_pixels
        if source.is_low:
            most = max(taken.min_pixels, min(most, LOW_ROWS * taken.factor**2))
        request = DecodeRequest(source.data, taken.factor, taken.min_pixels, most)
        answer = await self._ask(framed(msgspec.msgpack.encode(request)), where)
        outcome, rest = bytes(answer[:1]), memoryview(answer)[1:]
        if outcome == REFUSED:
            raise _refused(where, str(rest, "utf-8", "replace"))
        if outcome != DECODED or len(rest) < 8:
            self._worker.close()  # it ends
            raise _refused(where, TOO_MUCH_WORK)
        height, width = (int.from_bytes(rest[at : at + 4], "little") for at in (0, 4))
        return Image(start=0, height=height, width=width, pixels=bytes(rest[8:]))

    def close(self) -> None:
        """End the process; idempotent."""
        self._worker.close()

    async def _ask(self, request: bytes, where: str) -> bytearray:
        try:
            await asyncio.wait_for(self._turn.acquire(), WAIT_S)
        except TimeoutError:
            raise QueueTimeoutError("images of others are being decoded: try again later") from None
        try:
            return await self._answer(request)
        except OverrunError:
            raise _refused(where, TOO_MUCH_WORK) from None
        except LostError:
            raise ProcessDeadError("processes that decode images were lost: try again later") from None
        finally:
            self._turn.release()

    async def _answer(self, request: bytes) -> bytearray:
        if self._worker.child is None or self._worker.child.has_ended:
            await self._worker.start()
        answers = list[bytearray]()
        await self._worker.ask(deque((request,)), answers.append)
        return answers[0]


def _start() -> tuple[Child, socket.socket]:
    environ = env.for_sandbox(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    return Child.connected([MODULE], environ, streams=SILENT)


def _refused(where: str, why: str) -> RequestError:
    return RequestError(f"`{where}`: the image is not taken: {why}", param=where, code="invalid_image")


def _check_decoders() -> None:
    if find_spec("PIL") is None:
        raise RequestError(
            "images cannot be decoded by this server: its operator has to install Firelane's extra `images`",
            param="messages",
            code="unsupported_parameter",
        )
