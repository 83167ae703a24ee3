"""System calls that a process may make, by filters that the kernel runs before each (seccomp(2),
Documentation/userspace-api/seccomp_filter.rst of Linux)."""

from __future__ import annotations

import ctypes as ct
import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from firelane.sandbox.system import Machine, call

SET_MODE_FILTER, GET_ACTION_AVAIL = 1, 2
TO_ALL_THREADS = 1
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
# Of struct seccomp_data.
NUMBER_AT, ARCH_AT, ARGUMENTS_AT, ARGUMENT_BYTES = 0, 4, 16, 8
# Of the classic BPF machine.
LOAD, AND, RETURN = 0x20, 0x54, 0x06
IF_EQUAL, IF_AT_LEAST = 0x15, 0x35

Instruction = tuple[int, int, int, int]
"""Code, instructions to pass over where a test holds, and where it does not, and a constant."""


UNIFIED = 424
"""Calls from this number on have one number on all processors. Libraries try them first, and take an older
one where the kernel has none."""


@dataclass(frozen=True, kw_only=True)
class SyscallRule:
    """A system call that fails. Without `argument` always; else where the low 32 bits of that argument, under
    `mask`, are one of `values`, or, with others, none of them, or, with any_bit, are not zero."""

    call: str
    error: int = errno.EPERM
    argument: int | None = None
    mask: int = 0xFFFFFFFF
    values: tuple[int, ...] = ()
    others: bool = False
    any_bit: bool = False


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument of an allowed call: its low 32 bits, under `mask`, are one of `values`."""

    index: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """A system call that works where all of these arguments are as they say."""

    call: str
    arguments: tuple[Argument, ...] = ()


def has_filters(machine: Machine) -> bool:
    """Whether the kernel takes filters that let calls fail."""
    try:
        call(machine, "seccomp", ct.c_uint(GET_ACTION_AVAIL), ct.c_uint(0), struct.pack("=I", ERRNO))
    except OSError:
        return False
    return True


def refuse(machine: Machine, calls: Sequence[SyscallRule]) -> None:
    """All threads of this process, and all that they start, fail at `calls` from now on. Raises OSError; also
    where another thread has a filter that this one has not."""
    _install(machine, program(machine, calls))


def allow_only(machine: Machine, calls: Sequence[Allowed]) -> None:
    """All threads of this process, and all that they start, fail at every call but `calls` from now on.
    Raises OSError, as `refuse` does."""
    _install(machine, allowing_program(machine, calls))


def _install(machine: Machine, instructions: Sequence[Instruction]) -> None:
    code = b"".join(struct.pack("=HBBI", *one) for one in instructions)
    memory = ct.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ct.addressof(memory))
    stuck = call(machine, "seccomp", ct.c_uint(SET_MODE_FILTER), ct.c_uint(TO_ALL_THREADS), head)
    if stuck:
        raise OSError(errno.EBUSY, f"thread {stuck} has filters of its own")


def program(machine: Machine, calls: Sequence[SyscallRule]) -> list[Instruction]:
    """The filter that lets `calls` fail, in instructions of the kernel's filter machine. Calls of another
    processor's interface fail, all of them."""
    code = _own_interface(machine)
    for refused in calls:
        number = machine.number(refused.call)
        if number is not None:
            body = _body(refused)
            code += [(IF_EQUAL, 0, len(body), number), *body]
    return [*code, (RETURN, 0, 0, ALLOW)]


def allowing_program(machine: Machine, calls: Sequence[Allowed]) -> list[Instruction]:
    """The filter that lets everything but `calls` fail. Unknown calls of later kernels are said to be missing
    (ENOSYS), so that libraries take older ones."""
    code = _own_interface(machine)
    for allowed in calls:
        number = machine.number(allowed.call)
        if number is not None:
            body = [step for argument in allowed.arguments for step in _where(argument)]
            code += [(IF_EQUAL, 0, len(body) + 1, number), *body, (RETURN, 0, 0, ALLOW)]
    return [*code, (IF_AT_LEAST, 0, 1, UNIFIED), _fail(errno.ENOSYS), _fail(errno.EPERM)]


def _own_interface(machine: Machine) -> list[Instruction]:
    """The beginning of a filter: calls of other interfaces fail, and the number of the call is loaded."""
    code: list[Instruction] = [
        (LOAD, 0, 0, ARCH_AT),
        (IF_EQUAL, 1, 0, machine.audit),
        _fail(errno.ENOSYS),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if machine.other_from is not None:
        code += [(IF_AT_LEAST, 0, 1, machine.other_from), _fail(errno.ENOSYS)]
    return code


def _where(argument: Argument) -> list[Instruction]:
    """Go on where the argument has one of its values; fail otherwise."""
    code = _load(argument.index, argument.mask)
    left = len(argument.values)
    for value in argument.values:
        code.append((IF_EQUAL, left, 0, value))
        left -= 1
    return [*code, _fail(errno.EPERM)]


def _load(argument: int, mask: int) -> list[Instruction]:
    return [(LOAD, 0, 0, ARGUMENTS_AT + ARGUMENT_BYTES * argument), (AND, 0, 0, mask)]


def _body(refused: SyscallRule) -> list[Instruction]:
    """Instructions at a refused call: the number has to be loaded again where an argument was looked at."""
    if refused.argument is None:
        return [_fail(refused.error)]
    code = _load(refused.argument, refused.mask)
    if refused.any_bit:
        code += [(IF_EQUAL, 1, 0, 0), _fail(refused.error)]
    elif refused.others:
        left = len(refused.values)
        for value in refused.values:
            code.append((IF_EQUAL, left, 0, value))
            left -= 1
        code.append(_fail(refused.error))
    else:
        for value in refused.values:
            code += [(IF_EQUAL, 0, 1, value), _fail(refused.error)]
    return [*code, (LOAD, 0, 0, NUMBER_AT)]


def _fail(error: int) -> Instruction:
    return RETURN, 0, 0, ERRNO | error
