"""Fetching in a process of its own: its libraries, threads and memory are gone when the model is here, and it
can be ended at any moment; the next one goes on where it was."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from firelane import env
from firelane.errors import FirelaneError


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """done, total: bytes. ended: the model is here. error: why it is not."""

    done: int = 0
    total: int = 0
    ended: bool = False
    error: str = ""


_REPORTS = msgspec.json.Decoder(Report)


async def fetch(
    source: str, cache_dir: Path, on_progress: Callable[[int, int], None], *, whole: bool
) -> None:
    """Return when the model is here. whole: as in resolve(). Raises FirelaneError; ends the process when it
    is cancelled."""
    command = (sys.executable, "-m", "firelane.sources", source, str(cache_dir), *(["whole"] * whole))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, start_new_session=True, env=env.for_child()
    )
    last = Report()
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            last = _REPORTS.decode(line)
            if last.total:
                on_progress(last.done, last.total)
        code = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if not last.ended:
        raise FirelaneError(last.error or f"{source}: its pull ended with code {code}; see the log")
