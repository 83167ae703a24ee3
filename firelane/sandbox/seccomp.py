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
IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x15, 0x35, 0x45

Instruction = tuple[int, int, int, int]
"""Code, instructions to pass over where a test holds, and where it does not, and a constant."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A system call that fails. Without `argument` always; else where the low 32 bits of that argument, under
    `mask`, are one of `values`, or, with any_bit, are not zero."""

    call: str
    error: int = errno.EPERM
    argument: int | None = None
    mask: int = 0xFFFFFFFF
    values: tuple[int, ...] = ()
    any_bit: bool = False


def has_filters(machine: Machine) -> bool:
    """Whether the kernel takes filters that let calls fail."""
    try:
        call(machine, "seccomp", ct.c_uint(GET_ACTION_AVAIL), ct.c_uint(0), struct.pack("=I", ERRNO))
    except OSError:
        return False
    return True


def refuse(machine: Machine, calls: Sequence[Refused]) -> None:
    """All threads of this process, and all that they start, fail at `calls` from now on. Raises OSError; also
    where another thread has a filter that this one has not."""
    code = b"".join(struct.pack("=HBBI", *one) for one in program(machine, calls))
    instructions = ct.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ct.addressof(instructions))
    stuck = call(machine, "seccomp", ct.c_uint(SET_MODE_FILTER), ct.c_uint(TO_ALL_THREADS), head)
    if stuck:
        raise OSError(errno.EBUSY, f"thread {stuck} has filters of its own")


def program(machine: Machine, calls: Sequence[Refused]) -> list[Instruction]:
    """Of the kernel's filter machine. Calls of another processor's interface fail, all of them."""
    code: list[Instruction] = [
        (LOAD, 0, 0, ARCH_AT),
        (IF_EQUAL, 1, 0, machine.audit),
        _fail(errno.ENOSYS),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if machine.other_from is not None:
        code += [(IF_AT_LEAST, 0, 1, machine.other_from), _fail(errno.ENOSYS)]
    for refused in calls:
        number = machine.number(refused.call)
        if number is not None:
            body = _body(refused)
            code += [(IF_EQUAL, 0, len(body), number), *body]
    return [*code, (RETURN, 0, 0, ALLOW)]


def _body(refused: Refused) -> list[Instruction]:
    """What is done at this call: the number has to be loaded again where an argument was looked at."""
    if refused.argument is None:
        return [_fail(refused.error)]
    code: list[Instruction] = [(LOAD, 0, 0, ARGUMENTS_AT + ARGUMENT_BYTES * refused.argument)]
    if refused.any_bit:
        code += [(IF_ANY_BIT, 0, 1, refused.mask), _fail(refused.error)]
    else:
        code.append((AND, 0, 0, refused.mask))
        for value in refused.values:
            code += [(IF_EQUAL, 0, 1, value), _fail(refused.error)]
    return [*code, (LOAD, 0, 0, NUMBER_AT)]


def _fail(error: int) -> Instruction:
    return RETURN, 0, 0, ERRNO | error
