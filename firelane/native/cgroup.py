"""Limits of the control groups that this process is in: memory and processor time, versions 1 and 2.

Sources: cgroups(7), proc(5) (mountinfo), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux. A
limit holds for all groups below, so every group from the process's own up to the root of the mount counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNLIMITED = 1 << 60
"""Version 1 spells "no limit" as a number about this large, or larger."""
RECLAIMABLE = ("inactive_file", "active_file")
"""Entries of memory.stat for page cache, which is given up when memory is needed."""


@dataclass(frozen=True, kw_only=True)
class Hierarchy:
    """The groups of this process in one mounted hierarchy. version: 1 or 2. groups: directories, its own
    first."""

    version: int
    controllers: frozenset[str]
    groups: tuple[Path, ...]


def memory_left(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take before a group of its is full; None without a limit."""
    left = [
        found
        for hierarchy in _hierarchies(root, "memory")
        for group in hierarchy.groups
        for found in [_memory_left(group, hierarchy.version)]
        if found is not None
    ]
    return min(left, default=None)


def cpu_quota(root: Path = Path("/")) -> int | None:
    """Whole cores that the groups of this process allow; None without a quota."""
    quotas = [
        found
        for hierarchy in _hierarchies(root, "cpu")
        for group in hierarchy.groups
        for found in [_quota(group, hierarchy.version)]
        if found is not None
    ]
    return min(quotas, default=None)


def own_group(root: Path = Path("/")) -> Path | None:
    """The directory of this process's group of version 2; None where there is no such version."""
    found = _hierarchies(root, "memory")
    return next((hierarchy.groups[0] for hierarchy in found if hierarchy.version == 2), None)


def _memory_left(group: Path, version: int) -> int | None:
    names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
    limits = [limit for name in names if (limit := _number(group / name)) is not None and limit < UNLIMITED]
    used = _number(group / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
    if not limits or used is None:
        return None
    prefix = "" if version == 2 else "total_"
    words = (line.split() for line in _read(group / "memory.stat").splitlines())
    stat = {w[0]: int(w[1]) for w in words if len(w) == 2 and w[1].isdecimal()}
    cached = sum(stat.get(prefix + name, 0) for name in RECLAIMABLE)
    return max(0, min(limits) - max(0, used - cached))


def _quota(group: Path, version: int) -> int | None:
    if version == 2:
        words = _read(group / "cpu.max").split()
    else:
        words = [_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None  # "max" or -1: none
    return max(1, math.ceil(int(words[0]) / int(words[1])))


def _hierarchies(root: Path, controller: str) -> Iterator[Hierarchy]:
    """The places where the controller may be: the hierarchy of version 2, and that of version 1 which has
    it."""
    paths = _own_paths(root)
    for line in _read(root / "proc/self/mountinfo").splitlines():
        # 36 35 98:0 ROOT MOUNT_POINT options [tags] - TYPE source super_options
        fields, _, kind = line.partition(" - ")
        before, after = fields.split(), kind.split()
        if len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if after[0] == "cgroup2" else 1
        controllers = frozenset() if version == 2 else frozenset(after[2].split(","))
        if version == 1 and controller not in controllers:
            continue
        own = paths.get("" if version == 2 else controller, "/")
        mounted = root / _unescaped(before[4]).lstrip("/")
        groups = tuple(_upwards(mounted, _unescaped(before[3]), own))
        yield Hierarchy(version=version, controllers=controllers, groups=groups)


def _own_paths(root: Path) -> dict[str, str]:
    """The process's group by controller; "" for version 2."""
    found: dict[str, str] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _upwards(mounted: Path, mount_root: str, own: str) -> Iterator[Path]:
    """The group's directory, then those above it. Where the group does not lie below what is mounted here (a
    container that sees the paths of its host), the mount point stands for it."""
    path, top = PurePosixPath(own), PurePosixPath(mount_root)
    below = path.relative_to(top) if path.is_relative_to(top) else PurePosixPath()
    if ".." in below.parts:
        below = PurePosixPath()
    yield from (mounted / part for part in (below, *below.parents))


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
