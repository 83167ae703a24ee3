"""Fetching in a process of its own: its libraries, threads and memory are gone when the model is here, and it
can be ended at any moment; the next one goes on where it was."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from firelane import env
from firelane.child_process import Child
from firelane.errors import FirelaneError


class FetchReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """done, total: bytes. ended: the model is here. error: why it is not."""

    done: int = 0
    total: int = 0
    ended: bool = False
    error: str = ""


MODULE = "firelane.sources"
_REPORTS = msgspec.json.Decoder(FetchReport)


async def fetch(
    source: str, cache_dir: Path, on_progress: Callable[[int, int], None], *, whole: bool
) -> None:
    """Return when the model is here. whole: as in resolve(). Raises FirelaneError; ends the process when it
    is cancelled."""
    words = [MODULE, source, str(cache_dir), *(["whole"] * whole)]
    child, sock = Child.connected(words, env.for_child(), leads_group=True)
    try:
        last = await _last_report(sock, on_progress)
        await child.exited()
    finally:
        code = child.end()
    if not last.ended:
        raise FirelaneError(last.error or f"{source}: its pull ended with code {code}; see the log")


async def _last_report(sock: socket.socket, on_progress: Callable[[int, int], None]) -> FetchReport:
    """Follow the reports of a process to their end."""
    try:
        reports, writer = await asyncio.open_connection(sock=sock)
    except BaseException:  # cancelled, too: nobody else owns the socket yet
        sock.close()
        raise
    last = FetchReport()
    try:
        async for line in reports:
            last = _REPORTS.decode(line)
            if last.total:
                on_progress(last.done, last.total)
    finally:
        writer.close()
    return last
