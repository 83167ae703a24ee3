"""The words between the rank that leads and the process of another rank, over a socket pair.

A rank says HELLO, is told its Task, says LOADED when its weights are there, then READY and its SIZES; or
FAILED and why, which ends it. From then on it is told ORDERs, and says RESTED and GIVEN when it is in
standby.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from firelane.contract import StepLimits
from firelane.engine_config import ExecutorConfig
from firelane.link.framing import MAX_FRAME_BYTES, encode
from firelane.link.line import Line
from firelane.parallel.hosts import HostLayout
from firelane.program.program import Program

HELLO, LOADED, READY, RESTED, FAILED = b"H", b"L", b"R", b"S", b"F"
SIZES = struct.Struct("<qq")
"""Bytes of a rank's weights and of its KV cache."""
ORDER = struct.Struct("<q")
"""STEP, WAKE, or the number of steps after which the rank goes to standby."""
STEP, WAKE = -2, -1
"""STEP: run the step whose inputs lie in the memory that all ranks share."""
GIVEN = struct.Struct("<qq")
"""The GivenBack of a rank that is in standby."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that the process of a rank needs to know."""

    program: Program
    """The whole model's."""
    model_dir: Path
    config: ExecutorConfig
    """The share of one rank."""
    rank: int
    hosts: HostLayout
    limits: StepLimits
    """The limits of the group."""
    slots_fd: int
    """The memory of SlotState, inherited."""
    share: Any
    """The rank's part of the Interconnect."""
    log_level: str
    log_format: str


class _Pickled(msgspec.Struct):
    task: bytes


def send_task(sock: socket.socket, task: Task) -> None:
    sock.sendall(encode(_Pickled(pickle.dumps(task))))


def receive_task(sock: socket.socket) -> Task:
    """The task, which the parent of this process has sent over a socket that nobody else has."""
    return pickle.loads(Line(sock, most_bytes=MAX_FRAME_BYTES).receive(_Pickled).task)


def send_failure(sock: socket.socket, message: str) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(FAILED + message.encode())
