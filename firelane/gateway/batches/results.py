"""The output and error file of a batch while it runs. They are its journal: a line is done when its result
lies in one of them, and nothing else remembers it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from firelane.api.stored.batches import (
    BatchInputDetails,
    BatchUsage,
    RequestCounts,
    ResultLine,
)
from firelane.api.usage import OutputTokensDetails
from firelane.gateway.batches.input import Scan
from firelane.gateway.batches.records import ERRORS, OUTPUT
from firelane.storage import sync_directory


class _Details(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct, kw_only=True):
    """Usage by the names of chat and of responses."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _AnswerBody(msgspec.Struct):
    usage: _Usage | None = None


_ANSWERS: msgspec.json.Decoder[_AnswerBody] = msgspec.json.Decoder(_AnswerBody)
_RESULTS: msgspec.json.Decoder[ResultLine] = msgspec.json.Decoder(ResultLine)


class ResultFile:
    """Lines that are only added. A crash may leave a part of the last group, which `repair` takes away."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._path = path
        self.size_bytes = 0

    def repair(self, accept: Callable[[bytes], bool]) -> None:
        """Keep the lines up to the first that is not whole or not accepted. Raises OSError."""
        good = 0
        with self._path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") or not accept(line):
                    break
                good += len(line)
        self._cut(good)
        sync_directory(self._path.parent)

    def _cut(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)
        os.fsync(self._fd)
        self.size_bytes = size_bytes

    def append(self, lines: Sequence[bytes]) -> None:
        """Add lines, each ended by a newline, and put them on the drive. Adds nothing when it raises
        OSError.
        """
        data = b"".join(lines)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self.size_bytes + done)
            os.fsync(self._fd)
        except OSError:
            self._cut(self.size_bytes)
            raise
        self.size_bytes += len(data)

    def close(self) -> None:
        os.close(self._fd)


class Tally:
    """Sums of the results so far. done: the numbers of the lines that have one."""

    def __init__(self, lines: Scan) -> None:
        self._lines = lines
        self.done: set[int] = set()
        self._completed = self._failed = 0
        self._input = self._cached = self._output = self._reasoning = 0

    def add(self, number: int, result: ResultLine, *, completed: bool) -> None:
        self.done.add(number)
        if completed:
            self._completed += 1
        elif result.response is not None:
            self._failed += 1
        if result.response is not None:
            self._add_usage(bytes(result.response.body))

    def accept(self, line: bytes, *, completed: bool) -> bool:
        """Add a line of a file. False when it is none, or none of this batch, or has been there before."""
        try:
            result = _RESULTS.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        number = self._lines.numbers.get(result.custom_id)
        if number is None or number in self.done:
            return False
        self.add(number, result, completed=completed)
        return True

    def _add_usage(self, body: bytes) -> None:
        try:
            usage = _ANSWERS.decode(body).usage
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if usage is None:
            return
        self._input += usage.prompt_tokens + usage.input_tokens
        self._output += usage.completion_tokens + usage.output_tokens
        for details in (usage.prompt_tokens_details, usage.input_tokens_details):
            self._cached += 0 if details is None else details.cached_tokens
        for details in (usage.completion_tokens_details, usage.output_tokens_details):
            self._reasoning += 0 if details is None else details.reasoning_tokens

    @property
    def counts(self) -> RequestCounts:
        return RequestCounts(total=len(self._lines), completed=self._completed, failed=self._failed)

    @property
    def usage(self) -> BatchUsage:
        return BatchUsage(
            input_tokens=self._input,
            input_tokens_details=BatchInputDetails(cached_tokens=self._cached),
            output_tokens=self._output,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self._reasoning),
            total_tokens=self._input + self._output,
        )


class Results:
    """Both files and their tally. `take` collects, `flush` writes what was collected."""

    def __init__(self, directory: Path, lines: Scan) -> None:
        """Repairs what a crash has left. Blocks; for a thread. Raises OSError."""
        self.tally = Tally(lines)
        self._files = (ResultFile(directory / ERRORS), ResultFile(directory / OUTPUT))
        for completed, file in enumerate(self._files):
            file.repair(lambda line, completed=completed: self.tally.accept(line, completed=bool(completed)))
        self._waiting: tuple[list[bytes], list[bytes]] = ([], [])
        self.waiting_bytes = 0

    def take(self, number: int, result: ResultLine, *, completed: bool) -> None:
        line = encode_line(result)
        self._waiting[completed].append(line)
        self.waiting_bytes += len(line)
        self.tally.add(number, result, completed=completed)

    async def flush(self) -> None:
        """Raises OSError; what was not written is kept for the next time. One at a time."""
        for file, waiting in zip(self._files, self._waiting, strict=True):
            group = waiting[:]
            if group:
                await asyncio.to_thread(file.append, group)
                del waiting[: len(group)]
                self.waiting_bytes -= sum(map(len, group))

    def close(self) -> None:
        for file in self._files:
            file.close()


def encode_line(result: ResultLine) -> bytes:
    """The JSON of a result as one line, whatever blanks the answer's has."""
    text = msgspec.json.encode(result)
    if b"\n" in text or b"\r" in text:
        body: Any = msgspec.json.decode(text)
        text = msgspec.json.encode(body)
    return text + b"\n"
