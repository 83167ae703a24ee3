"""A program that is confined as a serving engine is, and tries to get out by every system call it should not
have."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from firelane.sandbox import landlock, seccomp
from firelane.sandbox.calls import NO_CHANGES
from firelane.sandbox.numbers import NUMBERS
from firelane.sandbox.serving import serving_calls
from firelane.sandbox.system import this_machine

MACHINE = this_machine()
pytestmark = pytest.mark.skipif(
    MACHINE is None or not seccomp.has_filters(MACHINE), reason="this kernel takes no seccomp filters"
)
NOBODY = 65534
ESCAPES = """
import ctypes, json, os, sys
from pathlib import Path
from firelane import env
from firelane.sandbox import confine
from firelane.sandbox.system import this_machine

machine, libc, parent = this_machine(), ctypes.CDLL(None, use_errno=True), os.getppid()
names = sys.argv[2].split()
if sys.argv[3] != str(os.geteuid()):
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[3]))
cache = Path(sys.argv[1])
confine.confine(env.read({"FIRELANE_CXX": "/nowhere"}), cache, [])
(cache / "weights" / "own").write_text("packed")
confine.serve_only()
confine.forbid_changes()


def errno_of(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments))
    return ctypes.get_errno() if result < 0 else 0


buffer = ctypes.create_string_buffer(64)
room = ctypes.addressof(buffer)
REAL = {
    "limit of the parent": ("prlimit64", parent, 0, 0, room),
    "limit of init": ("prlimit64", 1, 0, 0, room),
    "signal to the parent": ("kill", parent, 0),
    "signal to all": ("kill", -1, 0),
    "signal to a thread elsewhere": ("tgkill", parent, parent, 0),
    "nice of the parent": ("setpriority", 0, parent, 19),
    "nice of the user": ("setpriority", 2, 0, 19),
    "drive's priority of the parent": ("ioprio_set", 1, parent, 0x6000),
    "cores of the parent": ("sched_setaffinity", parent, 8, room),
    "a process": ("clone", 17, 0, 0, 0, 0),
    "a dumpable process": ("prctl", 4, 1, 0, 0, 0),
    "typing at the terminal": ("ioctl", 0, 0x5412, room),
    "a datagram pair": ("socketpair", 1, 2, 0, room),
}
# Where the filter does not stop a call, the kernel does so for these arguments, by another error.
found = {name: errno_of(machine.number(name), -1, -1, -1, -1, -1, -1) for name in names}
found |= {what: errno_of(machine.number(call), *rest) for what, (call, *rest) in REAL.items()}


def outcome(work, *arguments):
    try:
        work(*arguments)
    except OSError as error:
        return error.errno
    return 0


own = cache / "weights" / "own"
for name in ("weights", "estimates", "python", "kernels"):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_TMPFILE):
        where = cache / name if flags & os.O_TMPFILE == os.O_TMPFILE else cache / name / "planted"
        found[f"{name} by open with {flags:o}"] = outcome(os.open, where, flags, 0o600)
    found[f"a directory in {name}"] = outcome(os.mkdir, cache / name / "planted")
found |= {
    "an existing file": outcome(os.open, own, os.O_WRONLY),
    "an existing file, emptied": outcome(os.open, own, os.O_RDONLY | os.O_TRUNC),
    "an existing file, cut": outcome(os.truncate, own, 0),
    "an existing file, moved": outcome(os.rename, own, cache / "weights" / "other"),
    "an existing file, removed": outcome(os.unlink, own),
    "another name": outcome(os.symlink, own, cache / "weights" / "other"),
}
assert own.read_text() == "packed"
print(json.dumps(found))
"""


def escapes() -> list[str]:
    """Calls that exist on this processor and are not of serving."""
    assert MACHINE is not None
    serving = {one.call for one in serving_calls()}
    changes = {one.call for one in NO_CHANGES if one.argument is None}
    names = [name for name in NUMBERS if name not in serving or name in changes]
    return [name for name in names if MACHINE.number(name) is not None]


@pytest.mark.parametrize("user", ["this user", "nobody"])
def test_no_call_gets_out(user: str) -> None:
    if user == "nobody" and os.geteuid() != 0:
        pytest.skip("only root runs programs as another user")
    uid = NOBODY if user == "nobody" else os.geteuid()
    limits = resource.getrlimit(resource.RLIMIT_CPU)
    with tempfile.TemporaryDirectory() as cache:  # pytest's are for this user alone
        Path(cache).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", ESCAPES, cache, " ".join(escapes()), str(uid)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 130
    got_out = {what: number for what, number in found.items() if number not in (errno.EPERM, errno.ENOSYS)}
    assert got_out == {}
    assert resource.getrlimit(resource.RLIMIT_CPU) == limits


@pytest.mark.skipif(MACHINE is None or landlock.abi(MACHINE) == 0, reason="this kernel has no Landlock")
def test_a_confined_program_cannot_let_itself_be_confined_less(tmp_path: Path) -> None:
    """Its filters stay when it asks for one that allows everything."""
    script = ESCAPES.partition("REAL = {")[0] + (
        "import struct\n"
        "code = ctypes.create_string_buffer(struct.pack('=HBBI', 6, 0, 0, 0x7FFF0000), 8)\n"
        "head = ctypes.create_string_buffer(struct.pack('@HP', 1, ctypes.addressof(code)))\n"
        "assert libc.syscall(ctypes.c_long(machine.number('seccomp')), 1, 1, head) == 0\n"
        "print(errno_of(machine.number('socket'), 1, 1, 0))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), "", str(os.geteuid())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EPERM)]
