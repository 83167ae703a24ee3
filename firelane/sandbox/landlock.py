"""Files that a thread and its later children may use, by Landlock (landlock(7),
Documentation/userspace-api/landlock.rst of Linux)."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from firelane.sandbox.system import Machine, call

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_DIR, MAKE_REG, MAKE_SYM = 1 << 7, 1 << 8, 1 << 12
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Rights on files that a version of the interface knows, the lowest bits; later ones know no more."""
NET_ABI, SCOPE_ABI = 4, 6
BIND_AND_CONNECT_TCP = 3
ABSTRACT_SOCKETS_AND_SIGNALS = 3
VERSION_FLAG = 1
RULE_PATH_BENEATH = 1


def abi(machine: Machine) -> int:
    """Version of the interface; 0 where the kernel has none, or has it turned off."""
    try:
        return call(machine, "landlock_create_ruleset", None, ct.c_size_t(0), ct.c_uint32(VERSION_FLAG))
    except OSError:
        return 0


def restrict(machine: Machine, rules: Iterable[tuple[Path, int]], *, network: bool = False) -> None:
    """From now on this thread may do with files what `rules` say, and nothing else; without `network` it
    binds and connects no TCP ports, and it sends signals only to those that are as restricted. Paths that do
    not exist, or that it may not open, are left out. Raises OSError."""
    version = abi(machine)
    known = (1 << RIGHTS_OF_ABI[min(version, max(RIGHTS_OF_ABI))]) - 1
    ruleset = _new_ruleset(machine, version, known, network=network)
    try:
        for path, rights in rules:
            _add(machine, ruleset, path, rights & known)
        call(machine, "landlock_restrict_self", ct.c_int(ruleset), ct.c_uint32(0))
    finally:
        os.close(ruleset)


def _new_ruleset(machine: Machine, version: int, files: int, *, network: bool) -> int:
    fields = [files]
    if version >= NET_ABI:
        fields.append(0 if network else BIND_AND_CONNECT_TCP)
    if version >= SCOPE_ABI:
        fields.append(ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    return call(machine, "landlock_create_ruleset", attributes, ct.c_size_t(len(attributes)), ct.c_uint32(0))


def _add(machine: Machine, ruleset: int, path: Path, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= OF_FILES
            rule = struct.pack("=Qi", rights, fd)
            call(
                machine,
                "landlock_add_rule",
                *(ct.c_int(ruleset), ct.c_int(RULE_PATH_BENEATH), rule, ct.c_uint32(0)),
            )
        finally:
            os.close(fd)
