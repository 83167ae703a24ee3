"""Filters, run as the kernel does, for both processors."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from firelane.sandbox.calls import NEVER, NO_FILE_RIGHTS, NO_NETWORK, NO_PROGRAMS
from firelane.sandbox.seccomp import (
    ALLOW,
    AND,
    ERRNO,
    IF_AT_LEAST,
    IF_EQUAL,
    LOAD,
    Instruction,
    allowing_program,
    program,
)
from firelane.sandbox.serving import serving_calls
from firelane.sandbox.system import MACHINES, NUMBERS, Machine

ALL = (*NEVER, *NO_FILE_RIGHTS, *NO_NETWORK, *NO_PROGRAMS)
STREAM, DATAGRAM, CLOEXEC = 1, 2, 0o2000000
MOST_INSTRUCTIONS = 4096
"""That the kernel takes."""
CLONE_VM, CLONE_THREAD, CLONE_NEWUSER, CLONE_NEWNET = 0x100, 0x10000, 0x10000000, 0x40000000
TESTS = {
    IF_EQUAL: lambda a, k: a == k,
    IF_AT_LEAST: lambda a, k: a >= k,
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


def run(code: list[Instruction], number: int, audit: int, arguments: tuple[int, ...]) -> int:
    """Run the filter on a call; return its verdict."""
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
        ("prlimit64", (0, 7), 0),
        ("prlimit64", (4242, 7), errno.EPERM),
        ("sched_setaffinity", (0,), 0),
        ("sched_setaffinity", (1,), errno.EPERM),
        ("setpriority", (0, 0, 19), 0),
        ("setpriority", (0, 4242, 19), errno.EPERM),
        ("setpriority", (2, 0, 19), errno.EPERM),
        ("ioprio_set", (1, 0), 0),
        ("ioprio_set", (3, 0), errno.EPERM),
        ("seccomp", (), 0),
        ("landlock_add_rule", (), 0),
    ],
)
def test_calls_by_their_arguments(
    machine: Machine, name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert error_of(machine, name, *arguments) == expected


def test_calls_of_other_interfaces_fail(machine: Machine) -> None:
    """Calls of 32-bit programs, and of x32, have other numbers."""
    code = program(machine, ALL)
    assert error(run(code, 0, 0x40000003, ())) == errno.ENOSYS
    if machine.other_from is not None:
        assert error(run(code, machine.other_from + 1, machine.audit, ())) == errno.ENOSYS


def test_all_other_calls_pass(machine: Machine) -> None:
    """A number that is refused is that of a name, and of one."""
    code = program(machine, ALL)
    refused = {number for number in range(512) if error(run(code, number, machine.audit, ()))}
    named = {machine.number(refused.call) for refused in ALL if refused.argument is None} - {None}
    by_argument = {machine.number(refused.call) for refused in ALL if refused.argument is not None}
    assert named <= refused <= named | by_argument
    assert len(code) < MOST_INSTRUCTIONS


SERVING = (
    ("futex", (), 0),
    ("sendmsg", (), 0),
    ("clone", (CLONE_VM | CLONE_THREAD,), 0),
    ("clone", (CLONE_VM,), errno.EPERM),  # a process
    ("clone", (CLONE_VM | CLONE_THREAD | CLONE_NEWUSER,), errno.EPERM),
    ("clone3", (), errno.ENOSYS),
    ("kill", (os.getpid(),), 0),
    ("kill", (os.getpid() + 1,), errno.EPERM),
    ("tgkill", (1,), errno.EPERM),
    ("prlimit64", (0,), 0),
    ("prlimit64", (os.getppid(),), errno.EPERM),
    ("setpriority", (0, 0), 0),
    ("setpriority", (0, 7), errno.EPERM),
    ("socketpair", (1, STREAM | CLOEXEC), 0),
    ("socketpair", (1, DATAGRAM), errno.EPERM),
    ("ioctl", (0, 0x5401), 0),
    ("ioctl", (0, 0x5412), errno.EPERM),
    ("prctl", (38,), 0),
    ("prctl", (4,), errno.EPERM),  # PR_SET_DUMPABLE
    ("socket", (), errno.EPERM),
    ("execve", (), errno.EPERM),
    ("shmget", (), errno.EPERM),
    ("io_uring_setup", (), errno.ENOSYS),
)


@pytest.mark.parametrize(("name", "arguments", "expected"), SERVING)
def test_the_calls_of_serving(machine: Machine, name: str, arguments: tuple[int, ...], expected: int) -> None:
    code = allowing_program(machine, serving_calls())
    number = machine.number(name)
    assert number is not None
    assert error(run(code, number, machine.audit, arguments)) == expected


def test_what_is_not_listed_fails(machine: Machine) -> None:
    code = allowing_program(machine, serving_calls())
    allowed = {n for n in range(512) if run(code, n, machine.audit, (1 << 30,) * 6) == ALLOW}
    named = {machine.number(one.call) for one in serving_calls() if not one.arguments} - {None}
    assert allowed == named
    assert error(run(code, 511, machine.audit, ())) == errno.ENOSYS
    assert len(code) < MOST_INSTRUCTIONS


def test_connections_may_be_kept_for_a_while(machine: Machine) -> None:
    number = machine.number("connect")
    assert number is not None
    with_network = allowing_program(machine, serving_calls(network=True))
    assert run(with_network, number, machine.audit, ()) == ALLOW


def test_numbers_are_of_one_call_each(machine: Machine) -> None:
    numbers = [number for name in NUMBERS if (number := machine.number(name)) is not None]
    assert len(numbers) == len(set(numbers))
