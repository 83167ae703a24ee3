"""Limits of control groups, read from trees as the versions of cgroups make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.native.cgroup import cpu_quota, memory_left

MIB = 1 << 20
V2 = "29 23 0:26 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 24 0:30 {root} {mount} rw shared:9 - cgroup cgroup rw,{controllers}\n"
OTHER = "24 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\nbroken line - cgroup2\n- \n"


def tree(root: Path, own: str, mounts: str, **files: str | int) -> Path:
    """A file system of /proc and /sys; the names of files have __ for / and begin below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    (root / "proc/self/mountinfo").write_text(OTHER + mounts)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def v2(root: Path, own: str = "/", *, mount_root: str = "/", **files: str | int) -> Path:
    mounts = V2.format(root=mount_root, mount="/sys/fs/cgroup")
    return tree(root, f"0::{own}\n", mounts, **files)


def test_no_groups(tmp_path: Path) -> None:
    assert memory_left(tmp_path) is cpu_quota(tmp_path) is None
    assert memory_left(v2(tmp_path)) is cpu_quota(tmp_path) is None


def test_a_container(tmp_path: Path) -> None:
    """Its group is the root of what it sees."""
    root = v2(tmp_path, memory_DOT_max=400 * MIB, memory_DOT_current=150 * MIB, cpu_DOT_max="150000 100000")
    assert memory_left(root) == 250 * MIB
    assert cpu_quota(root) == 2


def test_a_systemd_unit(tmp_path: Path) -> None:
    """systemd-run -p MemoryMax=400M -p CPUQuota=100%: the limits are far below the root."""
    unit = "system_DOT_slice__run_DOT_service__"
    files = {
        unit + "memory_DOT_max": 400 * MIB,
        unit + "memory_DOT_current": 100 * MIB,
        unit + "cpu_DOT_max": "100000 100000",
        "system_DOT_slice__memory_DOT_max": "max",
        "system_DOT_slice__memory_DOT_current": 900 * MIB,
        "system_DOT_slice__cpu_DOT_max": "max 100000",
    }
    root = v2(tmp_path, "/system.slice/run.service", **files)
    assert memory_left(root) == 300 * MIB
    assert cpu_quota(root) == 1


def test_the_tightest_of_all_groups_holds(tmp_path: Path) -> None:
    files = {
        "a__b__memory_DOT_max": 800 * MIB,
        "a__b__memory_DOT_current": 100 * MIB,
        "a__memory_DOT_max": 1000 * MIB,
        "a__memory_DOT_current": 900 * MIB,  # what others in it have taken
        "a__cpu_DOT_max": "300000 100000",
        "a__b__cpu_DOT_max": "max 100000",
    }
    root = v2(tmp_path, "/a/b", **files)
    assert memory_left(root) == 100 * MIB
    assert cpu_quota(root) == 3


def test_page_cache_is_not_used_up(tmp_path: Path) -> None:
    stat = f"anon {50 * MIB}\nfile {300 * MIB}\nshmem {100 * MIB}\n"
    stat += f"inactive_file {150 * MIB}\nactive_file {50 * MIB}"
    root = v2(tmp_path, memory_DOT_max=400 * MIB, memory_DOT_current=380 * MIB, memory_DOT_stat=stat)
    assert memory_left(root) == 220 * MIB


def test_throttling_is_a_limit(tmp_path: Path) -> None:
    files = {"memory_DOT_max": "max", "memory_DOT_high": 64 * MIB, "memory_DOT_current": 70 * MIB}
    assert memory_left(v2(tmp_path, **files)) == 0


@pytest.mark.parametrize("mount_root", ["/", "/docker/abc", "/elsewhere", "/docker/abc/deep"])
def test_a_container_that_sees_the_paths_of_its_host(tmp_path: Path, mount_root: str) -> None:
    """Without a namespace of its own; the files lie where the mount begins, or below."""
    at = "docker__abc__" if mount_root == "/" else ""
    files = {f"{at}memory_DOT_max": 10 * MIB, f"{at}memory_DOT_current": 4 * MIB}
    assert memory_left(v2(tmp_path, "/docker/abc", mount_root=mount_root, **files)) == 6 * MIB


def test_a_group_above_the_namespace(tmp_path: Path) -> None:
    root = v2(tmp_path, "/../sibling", memory_DOT_max=10 * MIB, memory_DOT_current=4 * MIB)
    assert memory_left(root) == 6 * MIB


def test_version_1(tmp_path: Path) -> None:
    mounts = V1.format(root="/", mount="/sys/fs/cgroup/memory", controllers="memory")
    mounts += V1.format(root="/", mount="/sys/fs/cgroup/cpu,cpuacct", controllers="cpu,cpuacct")
    mounts += V2.format(root="/", mount="/sys/fs/cgroup/unified")
    own = "9:name=systemd:/\n4:memory:/box/job\n2:cpu,cpuacct:/box\n0::/\n"
    unlimited = 9223372036854771712
    files = {
        "memory__box__job__memory_DOT_limit_in_bytes": unlimited,
        "memory__box__job__memory_DOT_usage_in_bytes": 90 * MIB,
        "memory__box__memory_DOT_limit_in_bytes": 400 * MIB,
        "memory__box__memory_DOT_usage_in_bytes": 100 * MIB,
        "memory__box__memory_DOT_stat": (
            f"inactive_file 0\ntotal_inactive_file {30 * MIB}\ntotal_active_file 0"
        ),
        "memory__memory_DOT_limit_in_bytes": unlimited,
        "memory__memory_DOT_usage_in_bytes": 9000 * MIB,
        "cpu,cpuacct__box__cpu_DOT_cfs_quota_us": 150000,
        "cpu,cpuacct__box__cpu_DOT_cfs_period_us": 100000,
        "cpu,cpuacct__cpu_DOT_cfs_quota_us": -1,
        "cpu,cpuacct__cpu_DOT_cfs_period_us": 100000,
    }
    root = tree(tmp_path, own, mounts, **files)
    assert memory_left(root) == 330 * MIB
    assert cpu_quota(root) == 2


def test_a_mount_point_with_a_blank(tmp_path: Path) -> None:
    mounts = V2.format(root="/", mount="/sys/fs/cgroup/a\\040b")
    files = {"a b__memory_DOT_max": 10 * MIB, "a b__memory_DOT_current": MIB}
    assert memory_left(tree(tmp_path, "0::/\n", mounts, **files)) == 9 * MIB


@pytest.mark.parametrize("text", ["", "max", "-1", "12 34", "\xff", "99999999999999999999"])
def test_what_is_no_limit(tmp_path: Path, text: str) -> None:
    root = v2(tmp_path, memory_DOT_max=text, memory_DOT_current=4, cpu_DOT_max=text.replace(" ", ""))
    assert memory_left(root) is cpu_quota(root) is None


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("1000 0", None)]
)
def test_cpu_quota(tmp_path: Path, text: str, cores: int | None) -> None:
    assert cpu_quota(v2(tmp_path, cpu_DOT_max=text)) == cores
