"""A control group for each engine, with a limit of memory, below the group that this process was given.

Sources: Documentation/admin-guide/cgroup-v2.rst of Linux, systemd's CGROUP_DELEGATION.md. The kernel has no
processes beside groups with limits, so this process moves to a group beside its engines.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from urllib.parse import quote

from firelane.native import cgroup

HEADROOM_BYTES = 2 << 30
"""Beside weights, KV cache and states: the interpreter, buffers, a first load's packing and compilers."""
OF_THE_NODE = "firelane-node"
PREFIX = "firelane-"
MARKS = ("trusted.delegate", "user.delegate")
"""Extended attributes by which systemd marks a group that it leaves to its processes."""
log = logging.getLogger(__name__)


class NoGroups:
    """Twin of all of these where there is nothing to do."""

    def group(self, name: str, share_bytes: Callable[[], int]) -> EngineGroup:
        del name, share_bytes
        return self

    def enter(self, pid: int) -> None:
        pass

    def leave(self) -> None:
        pass


NO_GROUPS = NoGroups()


class _NotDelegatedError(Exception):
    pass


class DelegatedGroups:
    """The MemoryGroups below a group whose own limits hold for all of them. What an earlier node has left
    there is removed."""

    def __init__(self, top: Path) -> None:
        self._top = top
        for left in top.glob(f"{PREFIX}*/"):
            remove(left)

    def group(self, name: str, share_bytes: Callable[[], int]) -> EngineGroup:
        return _DelegatedGroup(self._top / f"{PREFIX}{quote(name, safe='')}", share_bytes)


class _DelegatedGroup:
    def __init__(self, path: Path, share_bytes: Callable[[], int]) -> None:
        self._path, self._share_bytes = path, share_bytes
        self._made: list[Path] = []

    def enter(self, pid: int) -> None:
        share = self._share_bytes()
        if share <= 0:
            return
        try:
            made = self._make()
            _write(made / "memory.max", limit_of(share))
            _write(made / "memory.oom.group", 1)
            _write(made / "cgroup.procs", pid)
        except OSError as error:
            log.warning("engine_without_limit group=%s error=%r", self._path.name, error.strerror)

    def leave(self) -> None:
        """Processes that it has started and that are about to end keep a group, until the next one leaves."""
        self._made = [made for made in self._made if not remove(made)]

    def _make(self) -> Path:
        """An engine that takes another one's place has the next group: both live for a while."""
        for number in count():
            path = self._path.with_name(f"{self._path.name}.{number}") if number else self._path
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                self._made.append(path)
                return path
        raise AssertionError


def limit_of(share_bytes: int) -> int:
    """The limit of an engine's group: a quarter more than its share, which is an estimate before the first
    load."""
    return share_bytes + share_bytes // 4 + HEADROOM_BYTES


def remove(group: Path) -> bool:
    """Whether it is gone, which it is not while it has processes."""
    try:
        group.rmdir()
    except OSError:
        return not group.exists()
    return True


def delegated_groups(root: Path = Path("/")) -> MemoryGroups:
    """For the engines of this process, which has started no other process yet. Where no group was delegated
    to it, they get none, and the log says why."""
    try:
        top = _prepared(root)
    except _NotDelegatedError as reason:
        log.debug("engines have no memory limits of their own: %s", reason)
    except OSError as error:
        log.debug("engines have no memory limits of their own: %s: %s", error.filename, error.strerror)
    else:
        log.info("each engine is limited to its share of memory, in a control group below %s", top)
        return DelegatedGroups(top)
    return NO_GROUPS


def _prepared(root: Path) -> Path:
    """The group below which engines get theirs. Raises _NotDelegatedError, OSError."""
    own = cgroup.own_group(root)
    if own is None:
        raise _NotDelegatedError("this system has no control groups of version 2")
    if own.name == OF_THE_NODE:
        return own.parent  # prepared by the node that has started this one
    if "memory" not in (own / "cgroup.controllers").read_text().split():
        raise _NotDelegatedError("this control group has no memory controller (systemd: Delegate=memory)")
    if not _is_delegated(own):
        raise _NotDelegatedError("no control group is delegated to this process (systemd: Delegate=memory)")
    if (own / "cgroup.procs").read_text().split() != [str(os.getpid())]:
        raise _NotDelegatedError("other processes are in this control group")
    node = own / OF_THE_NODE
    node.mkdir(exist_ok=True)
    _write(node / "cgroup.procs", os.getpid())
    _write(own / "cgroup.subtree_control", "+memory")
    return own


def _is_delegated(group: Path) -> bool:
    """Root can write to all groups: systemd's mark, or the top of a container, says that it may."""
    if not os.access(group, os.W_OK):
        return False
    if os.geteuid() != 0 or os.path.ismount(group):
        return True
    for mark in MARKS:
        with contextlib.suppress(OSError):
            return os.getxattr(group, mark) == b"1"
    return False


def _write(path: Path, value: int | str) -> None:
    path.write_text(f"{value}\n")


EngineGroup = NoGroups | _DelegatedGroup
MemoryGroups = NoGroups | DelegatedGroups
