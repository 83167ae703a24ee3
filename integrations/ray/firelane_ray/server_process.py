"""`firelane serve` as a child of an actor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from firelane.errors import EngineDeadError, MachineError, UsageError

log = logging.getLogger(__name__)
STOP_S = 10.0
MOST_LINE_BYTES = 1 << 20


def options_of(settings: Mapping[str, Any]) -> list[str]:
    """Options of the command line: {"max_num_seqs": 8, "no_sandbox": True} is --max-num-seqs 8 --no-sandbox;
    a list repeats its option; None and False leave it out. Raises UsageError for what no option can be."""
    found: list[str] = []
    for name, value in settings.items():
        option = "--" + name.replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | int | float) and not isinstance(one, bool):
                found += [option, str(one)]
            elif one is True:
                found.append(option)
            elif one not in (None, False):
                raise UsageError(f"engine_kwargs: {name} is {one!r}: give a text, a number, true or a list")
    return found


class ServerProcess:
    """Owns the process. Its log goes to this process's own; used by one event loop."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """arguments: of `firelane serve`."""
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._last = ""

    async def start(self) -> str:
        """The server's address, once it serves. Raises MachineError with its last line where it ends."""
        command = [sys.executable, "-m", "firelane_ray.child", "serve", *self._arguments]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *("--host", "127.0.0.1", "--port", "0", "--log-format", "json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=MOST_LINE_BYTES,
        )
        assert self._process.stderr is not None
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(self._process.stderr, url))
        try:
            return await url
        except MachineError:
            await self._process.wait()
            raise

    def check(self) -> None:
        """Raises EngineDeadError where it has ended. Engines that die are started again by the server."""
        if self._process is None or self._process.returncode is not None:
            raise EngineDeadError(f"firelane serve has ended: {self._last or 'it was not started'}")

    async def stop(self) -> None:
        """Idempotent."""
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._reader is not None:
            await self._reader

    async def _read(self, stream: asyncio.StreamReader, url: asyncio.Future[str]) -> None:
        """To its end."""
        while line := await _line(stream):
            event = _decoded(line)
            if not line.startswith("usage: "):  # follows the line that says what is wrong
                self._last = str(event.get("message", line))
            log.info("firelane: %s", line)
            if event.get("event") == "serving" and not url.done():
                url.set_result(str(event["url"]))
        if not url.done():
            url.set_exception(MachineError(self._last or "firelane serve ended without a word"))


async def _line(stream: asyncio.StreamReader) -> str:
    """The next one that is not empty; "" at the end. Those that are too long are left out: a pipe that nobody
    reads would stop the server."""
    while True:
        try:
            data = await stream.readline()
        except ValueError:
            continue
        text = data.decode(errors="replace").strip()
        if text or not data:
            return text


def _decoded(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
