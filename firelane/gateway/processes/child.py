"""One gateway process, as its owner sees it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from dataclasses import dataclass, field

from firelane.gateway.processes.control import ControlChannel


@dataclass(eq=False)
class Child:
    """index: its place; number: its own, in its requests' ids. listening, told: it has answered the last
    Listen, and the last Collect."""

    index: int
    number: int
    child: subprocess.Popen[bytes]
    control: ControlChannel
    began_s: float
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)


async def exited(process: subprocess.Popen[bytes]) -> int:
    """The return code, without a thread where the system has process file descriptors."""
    if not hasattr(os, "pidfd_open"):
        return await asyncio.to_thread(process.wait)
    loop, fd = asyncio.get_running_loop(), os.pidfd_open(process.pid)
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return process.wait()
