"""The lines of a batch's input file: where they lie, what they are called, what is wrong with them."""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from firelane.api.decode import BodyDecoder
from firelane.api.stored.batches import BatchError, InputLine
from firelane.errors import RequestError

SLICE_S = 0.001
"""Seconds for which a scan may keep the event loop from other work."""
MAX_ERRORS = 100
MAX_LINES = 50_000


class _StreamField(msgspec.Struct):
    """Fields that are looked at before the endpoint sees the body."""

    stream: Any = None


_LINES: BodyDecoder[InputLine] = BodyDecoder(InputLine)
_BODIES: BodyDecoder[_StreamField] = BodyDecoder(_StreamField)


@dataclass(slots=True)
class Scan:
    """begins, ends: byte offsets of the requests, without the newline. numbers: by custom_id. errors: at most
    MAX_ERRORS; with any, the rest is not complete.
    """

    begins: array[int] = field(default_factory=lambda: array("Q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    errors: list[BatchError] = field(default_factory=list[BatchError])

    def __len__(self) -> int:
        return len(self.begins)


async def scan(path: Path, endpoint: str, line_bytes: int) -> Scan:
    """Read a whole input file in slices between which other work goes on. line_bytes: the longest line.
    Raises OSError.
    """
    found = Scan()
    offset = number = 0
    slice_ends_s = time.perf_counter() + SLICE_S
    with path.open("rb") as file:
        while line := file.readline(line_bytes + 2):
            number += 1
            text = line.rstrip(b"\r\n")
            if len(text) > line_bytes:
                _add_error(found, number, "line_too_long", f"the line is over {line_bytes} bytes")
                break
            if text.strip():
                _take(found, number, text, endpoint)
                found.begins.append(offset)
                found.ends.append(offset + len(text))
            offset += len(line)
            if len(found) > MAX_LINES:
                message = f"the file has more than {MAX_LINES} requests: split it"
                found.errors.append(BatchError(code="too_many_requests", message=message))
                break
            if len(found.errors) >= MAX_ERRORS:
                break
            if time.perf_counter() > slice_ends_s:
                await asyncio.sleep(0)
                slice_ends_s = time.perf_counter() + SLICE_S
    if not len(found) and not found.errors:
        found.errors.append(BatchError(code="empty_file", message="the file has no requests"))
    return found


def _take(found: Scan, number: int, text: bytes, endpoint: str) -> None:
    try:
        line = _LINES.decode(text)
    except RequestError as error:
        _add_error(found, number, _code(error), _say(error), error.param)
        return
    if line.url != endpoint:
        message = f"`url` is {line.url[:80]!r}, but the batch's endpoint is {endpoint}"
        _add_error(found, number, "url_mismatch", message, "url")
    elif line.custom_id in found.numbers:
        message = f"`custom_id` {line.custom_id[:80]!r} was used before: give each request its own"
        _add_error(found, number, "duplicate_custom_id", message, "custom_id")
    else:
        _take_body(found, number, line)
    found.numbers.setdefault(line.custom_id, len(found))


def _take_body(found: Scan, number: int, line: InputLine) -> None:
    try:
        body = _BODIES.decode(bytes(line.body))
    except RequestError as error:
        _add_error(found, number, _code(error), f"`body` is not a JSON object: {_say(error)}", "body")
        return
    if body.stream is True:
        message = "`body.stream` is true: a batch's answers come in one piece, leave it out"
        _add_error(found, number, "unsupported_parameter", message, "body.stream")


def _code(error: RequestError) -> str:
    return "invalid_json_line" if error.code == "invalid_json" else error.code or "invalid_value"


def _say(error: RequestError) -> str:
    return str(error).replace("the body is", "this line is", 1).replace("the body:", "this line:", 1)


def _add_error(found: Scan, line: int, code: str, message: str, param: str | None = None) -> None:
    found.errors.append(BatchError(code=code, line=line, message=message, param=param))


class Input:
    """The open input file of a batch whose lines are known to be good."""

    def __init__(self, path: Path, lines: Scan) -> None:
        """Raises OSError."""
        self.lines = lines
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, index: int) -> InputLine:
        begin = self.lines.begins[index]
        return _LINES.decode(os.pread(self._fd, self.lines.ends[index] - begin, begin))

    def close(self) -> None:
        os.close(self._fd)
