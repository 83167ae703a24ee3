"""Control groups of engines, in a tree of files as the kernel makes it. Here removing a group removes its
files, and a group's processes are what was last written to it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

import pytest

from firelane.engine_config import EngineConfig
from firelane.gateway.config import ModelConfig
from firelane.node.memory_groups import (
    HEADROOM_BYTES,
    NO_GROUPS,
    OF_THE_NODE,
    delegated_groups,
    limit_of,
)
from firelane.node.policy import ModelPolicy
from firelane.server.engine_shares import EngineOptions
from firelane.server.model_set import ModelSet
from firelane.server.model_spec import ModelSpec
from firelane.server.node_plan import NodePlan
from tests.node.engine_gateway import Gateway, engine_config

GIB = 1 << 30
OWN = "/system.slice/firelane.service"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The group of a systemd unit with Delegate=memory."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"0::{OWN}\n")
    mount = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(mount)
    group = tmp_path / "sys/fs/cgroup" / OWN[1:]
    group.mkdir(parents=True)
    for name, text in {
        "controllers": "cpu memory\n",
        "procs": f"{os.getpid()}\n",
        "subtree_control": "",
    }.items():
        (group / f"cgroup.{name}").write_text(text)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"1")
    monkeypatch.setattr(Path, "rmdir", remove_as_the_kernel_does)
    return group


def remove_as_the_kernel_does(group: Path) -> None:
    if is_busy(group):
        raise OSError("device or resource busy")
    shutil.rmtree(group)


def is_busy(group: Path) -> bool:
    processes = group / "cgroup.procs"
    return processes.exists() and Path(f"/proc/{processes.read_text().strip()}").exists()


def names(own: Path) -> list[str]:
    return sorted(path.name for path in own.iterdir() if path.is_dir())


def read(own: Path, group: str) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in (own / group).iterdir()}


def test_the_node_makes_room_for_groups_with_limits(own: Path, tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.INFO)
    assert delegated_groups(tmp_path) is not NO_GROUPS
    assert read(own, OF_THE_NODE) == {"cgroup.procs": str(os.getpid())}
    assert (own / "cgroup.subtree_control").read_text().strip() == "+memory"
    assert [record.message for record in caplog.records] == [
        f"each engine is limited to its share of memory, in a control group below {own}"
    ]


def test_an_engine_has_a_group_while_it_lives(own: Path, tmp_path: Path) -> None:
    group = delegated_groups(tmp_path).group("org/chat-0", lambda: 4 * GIB)
    assert names(own) == [OF_THE_NODE]
    group.enter(gone := 1 << 30)
    assert read(own, "firelane-org%2Fchat-0") == {
        "memory.max": str(limit_of(4 * GIB)),
        "memory.oom.group": "1",
        "cgroup.procs": str(gone),
    }
    group.leave()
    assert names(own) == [OF_THE_NODE]


def test_a_limit_leaves_room_beside_the_share() -> None:
    assert limit_of(4 * GIB) == 5 * GIB + HEADROOM_BYTES


def test_an_engine_of_unknown_needs_has_none(own: Path, tmp_path: Path) -> None:
    group = delegated_groups(tmp_path).group("chat-0", lambda: 0)
    group.enter(1 << 30)
    group.leave()
    assert names(own) == [OF_THE_NODE]


def test_an_engine_comes_before_the_one_that_it_replaces_has_gone(own: Path, tmp_path: Path) -> None:
    groups = delegated_groups(tmp_path)
    old, new = (groups.group("chat-0", lambda: GIB) for _ in range(2))
    old.enter(1 << 30)
    new.enter(1 << 30)
    assert names(own) == ["firelane-chat-0", "firelane-chat-0.1", OF_THE_NODE]
    old.leave()
    assert names(own) == ["firelane-chat-0.1", OF_THE_NODE]


def test_a_group_with_processes_goes_with_the_next(own: Path, tmp_path: Path) -> None:
    group = delegated_groups(tmp_path).group("chat-0", lambda: GIB)
    group.enter(os.getpid())
    group.leave()
    assert names(own) == ["firelane-chat-0", OF_THE_NODE]
    (own / "firelane-chat-0/cgroup.procs").write_text(f"{1 << 30}\n")
    group.leave()
    assert names(own) == [OF_THE_NODE]


def test_what_a_killed_node_left_is_removed(own: Path, tmp_path: Path) -> None:
    (own / "firelane-chat-0").mkdir()
    delegated_groups(tmp_path)
    assert names(own) == [OF_THE_NODE]


def test_a_node_in_a_prepared_group_goes_on_there(own: Path, tmp_path: Path) -> None:
    delegated_groups(tmp_path)
    (tmp_path / "proc/self/cgroup").write_text(f"0::{OWN}/{OF_THE_NODE}\n")
    delegated_groups(tmp_path).group("chat-0", lambda: GIB).enter(1 << 30)
    assert names(own) == ["firelane-chat-0", OF_THE_NODE]


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        (
            "cgroup.controllers",
            "cpu",
            "this control group has no memory controller (systemd: Delegate=memory)",
        ),
        ("cgroup.procs", "1\n2\n", "other processes are in this control group"),
    ],
)
def test_what_lacks_is_told(own: Path, tmp_path: Path, caplog, file: str, text: str, reason: str) -> None:
    caplog.set_level(logging.DEBUG)
    (own / file).write_text(text)
    assert delegated_groups(tmp_path) is NO_GROUPS
    assert names(own) == []
    assert [record.message for record in caplog.records] == [
        f"engines have no memory limits of their own: {reason}"
    ]


def test_root_leaves_groups_alone_that_are_not_its_own(own: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"0")
    assert delegated_groups(tmp_path) is NO_GROUPS
    assert names(own) == []


def test_a_system_without_groups(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    assert delegated_groups(tmp_path) is NO_GROUPS
    assert "no control groups of version 2" in caplog.text


def test_a_group_that_cannot_be_made_stops_no_engine(own: Path, tmp_path: Path, caplog) -> None:
    group = delegated_groups(tmp_path).group("chat-0", lambda: GIB)
    shutil.rmtree(own)
    group.enter(1 << 30)
    group.leave()
    assert "engine_without_limit group=firelane-chat-0" in caplog.text


def test_each_engine_of_a_place_enters_its_group(own: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        group = delegated_groups(tmp_path).group("chat-0", lambda: GIB)
        async with Gateway(engine_config(tmp_path), group=group) as gateway:
            first = await gateway.connect()
            assert read(own, "firelane-chat-0")["cgroup.procs"] == str(first.pid)
            gateway.supervisor.kill()
            second = await gateway.connect()
            assert read(own, "firelane-chat-0")["cgroup.procs"] == str(second.pid) != str(first.pid)
        assert names(own) == [OF_THE_NODE]

    asyncio.run(scenario())


def test_each_replica_of_a_model_has_its_share(tmp_path: Path) -> None:
    """The share is of the memory that the model needs; on a GPU it is zero."""
    asked: list = []

    class Groups:
        def group(self, name, share_bytes):
            asked.append((name, share_bytes))
            return NO_GROUPS

    models = [model_setup(tmp_path, "chat", "null", 2), model_setup(tmp_path, "fast", "cuda", 1)]
    ModelSet(lambda *_: None, NodePlan(groups=Groups()), models)
    assert {name: share() for name, share in asked} == {"chat-0": GIB, "chat-1": GIB, "fast-0": 0}


def model_setup(path: Path, name: str, backend: str, replicas: int) -> ModelSpec:
    engine = EngineConfig(model_dir=path, cache_dir=path / "cache", backend=backend)
    return ModelSpec(
        gateway=ModelConfig(model_dir=path, names=(name,)),
        engines=EngineOptions(engine=engine, replicas=replicas),
        policy=ModelPolicy(need_bytes=2 * GIB),
    )
