"""System calls that a process makes once its model is loaded: an allow-list. Everything else fails. Which
files they open is Landlock's business."""

from __future__ import annotations

import os

from firelane.sandbox.calls import (
    DATAGRAM,
    IO_PRIORITY_OF_PROCESS,
    NETWORK,
    NEW_NAMESPACES,
    OWN_PROCESS,
    PRIORITY_OF_PROCESS,
    RAW,
)
from firelane.sandbox.seccomp import Allowed, Argument

CLONE_THREAD = 0x10000
STREAM, SEQUENCE = 1, 5
"""SOCK_STREAM and SOCK_SEQPACKET: pairs that are connected to each other, and to nothing else."""
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: what Python asks of any file."""
PRCTLS = (1, 2, 15, 16, 38, 39, 0x53564D41)
"""The signal at the parent's death, a thread's name, no new rights, the name of a range of memory."""

# Those of each step come first: the kernel looks a call up from the beginning where it has no table of them.
WAITING = "futex poll ppoll select pselect6 epoll_wait epoll_pwait epoll_pwait2 sched_yield"
DESCRIPTORS = (
    "read write readv writev recvfrom sendto recvmsg sendmsg recvmmsg sendmmsg shutdown getsockname "
    "getpeername getsockopt setsockopt epoll_create epoll_create1 epoll_ctl eventfd eventfd2 pipe pipe2 "
    "close close_range dup dup2 dup3 fcntl flock lseek pread64 pwrite64 preadv pwritev preadv2 pwritev2"
)
TIME = (
    "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time timerfd_create timerfd_settime "
    "timerfd_gettime getitimer setitimer"
)
MEMORY = (
    "mmap munmap mremap mprotect madvise brk mlock mlock2 munlock mincore msync mbind get_mempolicy "
    "membarrier memfd_create"
)
FILES = (
    "open openat openat2 stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat "
    "getdents getdents64 getcwd rename renameat renameat2 unlink unlinkat mkdir mkdirat rmdir ftruncate "
    "truncate fallocate fsync fdatasync sync_file_range fadvise64 statfs fstatfs copy_file_range sendfile"
)
OWN = (
    "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait rt_sigpending sigaltstack restart_syscall "
    "set_robust_list rseq set_tid_address gettid exit exit_group arch_prctl sched_getaffinity getpriority "
    "wait4 waitid getpid getppid getuid geteuid getgid getegid getresuid getresgid getgroups uname sysinfo "
    "getrusage times getcpu getrandom getrlimit umask seccomp"
)
BY_DESCRIPTOR = "pidfd_send_signal"
"""Signals to processes of which it has been given a descriptor: trials of grammars."""


def serving_calls(*, network: bool = False) -> tuple[Allowed, ...]:
    """System calls of this process from now on. network: it opens connections still."""
    names = f"{WAITING} {DESCRIPTORS} {TIME} {MEMORY} {FILES} {OWN} {BY_DESCRIPTOR}".split()
    return (
        *(Allowed(call=name) for name in names),
        *_by_arguments(os.getpid()),
        *((Allowed(call=name) for name in NETWORK.split()) if network else ()),
        _pairs(network=network),
    )


def _by_arguments(own_pid: int) -> tuple[Allowed, ...]:
    own = Argument(index=0, values=(OWN_PROCESS,))
    return (
        # Threads, and no process. Arguments of clone3 lie in memory, so it is missing: libraries take this.
        _allowed("clone", Argument(index=0, mask=NEW_NAMESPACES | CLONE_THREAD, values=(CLONE_THREAD,))),
        _allowed("ioctl", Argument(index=1, values=IOCTLS)),
        _allowed("prctl", Argument(index=0, values=PRCTLS)),
        _allowed("tgkill", Argument(index=0, values=(own_pid,))),
        _allowed("kill", Argument(index=0, values=(own_pid,))),
        _allowed("prlimit64", own),
        _allowed("sched_setaffinity", own),
        _allowed("setpriority", Argument(index=0, values=(PRIORITY_OF_PROCESS,)), _own_at(1)),
        _allowed("ioprio_set", Argument(index=0, values=(IO_PRIORITY_OF_PROCESS,)), _own_at(1)),
    )


def _own_at(index: int) -> Argument:
    return Argument(index=index, values=(OWN_PROCESS,))


def _pairs(*, network: bool) -> Allowed:
    """An unconnected socket of a pair sends to any name in the file system."""
    kinds = (STREAM, SEQUENCE, DATAGRAM, RAW) if network else (STREAM, SEQUENCE)
    return _allowed("socketpair", Argument(index=1, mask=0xF, values=kinds))


def _allowed(call: str, *arguments: Argument) -> Allowed:
    return Allowed(call=call, arguments=arguments)
