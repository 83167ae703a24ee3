"""One gateway process, as its owner sees it."""

from __future__ import annotations

import asyncio
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
