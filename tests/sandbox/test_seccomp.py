"""Filters, run as the kernel does, for both processors."""

from __future__ import annotations

import errno
import struct

import pytest

from firelane.sandbox.calls import NEVER, NO_FILE_RIGHTS, NO_NETWORK, NO_PROGRAMS
from firelane.sandbox.seccomp import (
    ALLOW,
    AND,
    ERRNO,
    IF_ANY_BIT,
    IF_AT_LEAST,
    IF_EQUAL,
    LOAD,
    Instruction,
    program,
)
from firelane.sandbox.system import MACHINES, NUMBERS, Machine

ALL = (*NEVER, *NO_FILE_RIGHTS, *NO_NETWORK, *NO_PROGRAMS)
STREAM, DATAGRAM, CLOEXEC = 1, 2, 0o2000000
MOST_INSTRUCTIONS = 4096
"""That the kernel takes."""
CLONE_VM, CLONE_THREAD, CLONE_NEWUSER, CLONE_NEWNET = 0x100, 0x10000, 0x10000000, 0x40000000
TESTS = {
    IF_EQUAL: lambda a, k: a == k,
    IF_AT_LEAST: lambda a, k: a >= k,
    IF_ANY_BIT: lambda a, k: bool(a & k),
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


def run(code: list[Instruction], number: int, audit: int, arguments: tuple[int, ...]) -> int:
    """What the filter returns for a call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, audit, 0, *padded)
    at = accumulator = 0
    while True:
        kind, true, false, constant = code[at]
        at += 1
        if kind == LOAD:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif kind == AND:
            accumulator &= constant
        elif kind in TESTS:
            at += true if TESTS[kind](accumulator, constant) else false
        else:
            return constant


def error_of(machine: Machine, name: str, *arguments: int) -> int:
    """0 where the call may be made."""
    number = machine.number(name)
    assert number is not None
    return error(run(program(machine, ALL), number, machine.audit, arguments))


def error(returned: int) -> int:
    if returned == ALLOW:
        return 0
    assert returned & ~0xFFFF == ERRNO
    return returned & 0xFFFF


@pytest.mark.parametrize(
    "name", ["socket", "connect", "ptrace", "execve", "mount", "bpf", "fchmodat", "setns"]
)
def test_calls_that_fail(machine: Machine, name: str) -> None:
    assert error_of(machine, name) == errno.EPERM


def test_calls_that_libraries_try_first(machine: Machine) -> None:
    """They take another one then."""
    assert error_of(machine, "clone3") == error_of(machine, "io_uring_setup") == errno.ENOSYS


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (CLONE_VM | CLONE_THREAD,), 0),
        ("clone", (CLONE_VM | CLONE_NEWUSER,), errno.EPERM),
        ("clone", (CLONE_NEWNET,), errno.EPERM),
        ("socketpair", (1, STREAM | CLOEXEC), 0),
        ("socketpair", (1, DATAGRAM | CLOEXEC), errno.EPERM),
        ("ioctl", (0, 0x5401), 0),
        ("ioctl", (0, 0x5412), errno.EPERM),
        ("ioctl", (0, 0x7_0000_5412), errno.EPERM),  # the kernel looks at the low half alone
        ("seccomp", (), 0),
        ("landlock_add_rule", (), 0),
    ],
)
def test_calls_by_their_arguments(
    machine: Machine, name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert error_of(machine, name, *arguments) == expected


def test_calls_of_other_interfaces_fail(machine: Machine) -> None:
    """Those of 32 bits, and x32's, have other numbers."""
    code = program(machine, ALL)
    assert error(run(code, 0, 0x40000003, ())) == errno.ENOSYS
    if machine.other_from is not None:
        assert error(run(code, machine.other_from + 1, machine.audit, ())) == errno.ENOSYS


def test_all_other_calls_pass(machine: Machine) -> None:
    """A number that is refused is that of a name, and of one."""
    code = program(machine, ALL)
    refused = {number for number in range(512) if error(run(code, number, machine.audit, ()))}
    named = {machine.number(refused.call) for refused in ALL if refused.argument is None} - {None}
    assert refused == named
    assert len(code) < MOST_INSTRUCTIONS


def test_numbers_are_of_one_call_each(machine: Machine) -> None:
    numbers = [number for name in NUMBERS if (number := machine.number(name)) is not None]
    assert len(numbers) == len(set(numbers))
