"""System calls that no engine makes, and those that it makes only until its model is loaded."""

from __future__ import annotations

import errno
import os

from firelane.sandbox.seccomp import SyscallRule

NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* of clone(2): mounts, control groups, names, message queues, users, processes, network."""
PUSH_INPUT, CONSOLE = 0x5412, 0x541C
"""TIOCSTI and TIOCLINUX: what types at the terminal that the server was started from."""
DATAGRAM, RAW = 2, 3

NETWORK = "socket connect bind listen accept accept4"
OTHER_PROCESSES = (
    "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp "
    "perf_event_open userfaultfd move_pages migrate_pages get_robust_list rt_sigqueueinfo rt_tgsigqueueinfo"
)
SCHEDULING = "sched_setscheduler sched_setparam sched_setattr"
"""Real-time priorities take a processor from everyone else."""
MESSAGES = (
    "shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl "
    "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
)
"""Memory, semaphores and queues that have names for other programs of the machine (System V, POSIX)."""
OWN_PROCESS = 0
"""The id that means the calling process or thread itself."""
PRIORITY_OF_PROCESS, IO_PRIORITY_OF_PROCESS = 0, 1
"""PRIO_PROCESS and IOPRIO_WHO_PROCESS: not of a group, and not of a user."""
NAMESPACES = (
    "unshare setns mount umount2 pivot_root chroot mount_setattr move_mount open_tree fsopen fsconfig "
    "fsmount fspick"
)
SYSTEM = (
    "acct add_key adjtimex bpf clock_adjtime clock_settime delete_module fanotify_init finit_module "
    "init_module ioperm iopl kexec_file_load kexec_load keyctl name_to_handle_at open_by_handle_at quotactl "
    "quotactl_fd reboot request_key setdomainname sethostname settimeofday swapoff swapon syslog vhangup"
)
FILE_RIGHTS = (
    "chmod chown fchmod fchmodat fchmodat2 fchown fchownat fremovexattr fsetxattr lchown lremovexattr "
    "lsetxattr removexattr removexattrat setxattr setxattrat"
)
"""Which Landlock does not look at."""
CHANGES = "truncate rename renameat renameat2 unlink unlinkat rmdir mkdir mkdirat"
"""Changes of files by their names, among the calls of serving."""
TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
RINGS = "io_uring_enter io_uring_register io_uring_setup"
"""Calls of rings: what is asked for through them passes no filter."""

NEVER = (
    *(
        SyscallRule(call=name)
        for name in f"{OTHER_PROCESSES} {NAMESPACES} {SYSTEM} {SCHEDULING} {MESSAGES}".split()
    ),
    SyscallRule(call="prlimit64", argument=0, values=(OWN_PROCESS,), others=True),
    SyscallRule(call="sched_setaffinity", argument=0, values=(OWN_PROCESS,), others=True),
    SyscallRule(call="setpriority", argument=0, values=(PRIORITY_OF_PROCESS,), others=True),
    SyscallRule(call="setpriority", argument=1, values=(OWN_PROCESS,), others=True),
    SyscallRule(call="ioprio_set", argument=0, values=(IO_PRIORITY_OF_PROCESS,), others=True),
    SyscallRule(call="ioprio_set", argument=1, values=(OWN_PROCESS,), others=True),
    *(SyscallRule(call=name, error=errno.ENOSYS) for name in RINGS.split()),
    # Arguments in memory cannot be looked at: the C library then takes clone, whose flags are a number.
    SyscallRule(call="clone3", error=errno.ENOSYS),
    SyscallRule(call="clone", argument=0, mask=NEW_NAMESPACES, any_bit=True),
    SyscallRule(call="ioctl", argument=1, values=(PUSH_INPUT, CONSOLE)),
)
NO_NETWORK = (
    *(SyscallRule(call=name) for name in NETWORK.split()),
    # An unconnected socket sends to any name in the file system.
    SyscallRule(call="socketpair", argument=1, mask=0xF, values=(DATAGRAM, RAW)),
)
NO_FILE_RIGHTS = tuple(SyscallRule(call=name) for name in FILE_RIGHTS.split())
NO_CHANGES = (
    *(SyscallRule(call=name) for name in CHANGES.split()),
    SyscallRule(call="open", argument=1, mask=TO_WRITE, any_bit=True),
    SyscallRule(call="openat", argument=2, mask=TO_WRITE, any_bit=True),
    # Its flags lie in memory.
    SyscallRule(call="openat2", error=errno.ENOSYS),
)
NO_PROGRAMS = (SyscallRule(call="execve"), SyscallRule(call="execveat"))
