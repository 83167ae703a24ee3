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

PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION = 0x20080522
KEPT_CAPABILITIES = (1, 2, 14, 23)
"""Of root: files of other users (DAC_OVERRIDE, DAC_READ_SEARCH), which Landlock has the last word on, locked
memory (IPC_LOCK), and the placing of threads (SYS_NICE)."""

# name: (x86-64, AArch64); -1: has none. From the kernel's syscall tables (arch/x86/entry/syscalls, scripts/).
NUMBERS = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chmod": (90, -1),
    "chown": (92, -1),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "finit_module": (313, 273),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lchown": (94, -1),
    "listen": (50, 201),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "seccomp": (317, 277),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}


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
    """Those that root has and need not have; a container may have taken some of the others already."""
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
