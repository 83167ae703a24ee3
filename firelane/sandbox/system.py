"""System calls by name, for the processors that the sandbox knows, and what a thread may still gain."""

from __future__ import annotations

import ctypes as ct
import functools
import os
import resource
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from firelane.sandbox.numbers import NUMBERS

PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION = 0x20080522
KEPT_CAPABILITIES = (1, 2, 14, 23)
"""Capabilities that root keeps: files of other users (DAC_OVERRIDE, DAC_READ_SEARCH), which Landlock has the
last word on, locked memory (IPC_LOCK), and the placing of threads (SYS_NICE)."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A processor's system calls. audit: its name in a filter; column: of NUMBERS; other_from: numbers from
    here on are those of another interface of the same processor."""

    audit: int
    column: int
    other_from: int | None = None

    def number(self, name: str) -> int | None:
        number = NUMBERS[name][self.column]
        return number if number >= 0 else None


MACHINES = {
    "x86_64": Machine(audit=0xC000003E, column=0, other_from=0x40000000),
    "aarch64": Machine(audit=0xC00000B7, column=1),
}


def this_machine() -> Machine | None:
    """None where nothing of the sandbox exists: another system, another processor, a 32-bit process."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return None
    return MACHINES.get(os.uname().machine)


def call(machine: Machine, name: str, *arguments: object) -> int:
    """Raises OSError."""
    number = machine.number(name)
    assert number is not None
    result = _library().syscall(ct.c_long(number), *arguments)
    if result < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return result


def gain_nothing(machine: Machine) -> None:
    """No program that is started from now on has rights beyond those of this process, root's capabilities
    are but KEPT_CAPABILITIES, and no core dump shows what was in memory. Raises OSError."""
    if _library().prctl(PR_SET_NO_NEW_PRIVS, ct.c_ulong(1), *(ct.c_ulong(0) for _ in range(3))):
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        _drop_capabilities(machine)


def _drop_capabilities(machine: Machine) -> None:
    """Drop capabilities that root has and need not have; a container may have taken some of the others
    already."""
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    wanted = sum(1 << number for number in KEPT_CAPABILITIES)
    kept = wanted & _permitted()
    call(machine, "capset", header, struct.pack("=6I", kept, kept, 0, 0, 0, 0))


def _permitted() -> int:
    with Path("/proc/self/status").open() as status:
        return next((int(line.split()[1], 16) for line in status if line.startswith("CapPrm:")), 0)


@functools.cache
def _library() -> ct.CDLL:
    return ct.CDLL(None, use_errno=True)
