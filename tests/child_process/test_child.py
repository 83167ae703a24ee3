"""One child process: its end is noticed and taken, by itself, asked for, or forced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from firelane.child_process import Child
from firelane.child_process import child as child_module
from firelane.child_process.child import SILENT
from firelane.child_process.forked import forked_child

SLEEPS = "import time; time.sleep(600)"
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
)
NURSE = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()']).pid, flush=True)"


@pytest.fixture(params=[True, False], ids=["pidfd", "without"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    return request.param


def test_an_end_by_itself_has_its_code() -> None:
    child = Child.start([sys.executable, "-c", "exit(7)"], os.environ)
    assert child.ends_within(60)
    assert child.has_ended
    assert child.end(60) == child.end() == child.code == 7
    assert child.ending() == "exited with code 7"
    child.kill("late")
    assert child.ending() == "exited with code 7"


def test_one_that_does_not_end_is_killed() -> None:
    child = Child.start([sys.executable, "-c", SLEEPS], os.environ)
    assert not child.ends_within(0.01)
    assert not child.has_ended
    assert child.end(0.01) == -signal.SIGKILL
    assert child.ending() == "was killed by SIGKILL"


def test_a_reason_of_ours_is_told() -> None:
    child = Child.start([sys.executable, "-c", SLEEPS], os.environ)
    child.kill("showed no life for 3 s")
    assert child.ending() == "showed no life for 3 s"
    assert child.end(None) == -signal.SIGKILL


@pytest.mark.parametrize(("program", "code"), [(SLEEPS, -signal.SIGTERM), (DEAF, -signal.SIGKILL)])
def test_it_is_asked_first(program: str, code: int) -> None:
    read, write = os.pipe()
    child = Child.start([sys.executable, "-c", program], os.environ, streams=(None, write, None))
    os.close(write)
    if program == DEAF:
        os.read(read, 1)
    os.close(read)
    child.terminate()
    assert child.end(60 if code == -signal.SIGTERM else 0.05) == code


@pytest.mark.parametrize("leads_group", [True, False])
def test_what_a_leader_has_started_ends_with_it(leads_group: bool) -> None:
    read, write = os.pipe()
    child = Child.start(
        [sys.executable, "-c", f"{NURSE}; {SLEEPS}"],
        os.environ,
        streams=(None, write, None),
        leads_group=leads_group,
    )
    os.close(write)
    pid = int(os.read(read, 100))
    child.end()
    if not leads_group:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.01)


def test_an_end_wakes_all_who_wait() -> None:
    async def work() -> None:
        child = Child.start([sys.executable, "-c", SLEEPS], os.environ)
        waits = [asyncio.ensure_future(child.exited()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(wait.done() for wait in waits)
        child.kill()
        await asyncio.wait_for(asyncio.gather(*waits), 60)
        child.end()
        await child.exited()

    asyncio.run(work())


def test_a_stopped_one_is_told_from_one_that_runs() -> None:
    child = Child.start([sys.executable, "-c", SLEEPS], os.environ, streams=SILENT)
    assert not child.is_stopped()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    while not child.is_stopped():
        time.sleep(0.01)
    assert child.end() == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system has no process file descriptors")
def test_a_stopped_one_that_another_process_has_started_is_told_from_one_that_runs(system: bool) -> None:
    if not system:
        pytest.skip("such a one is known by its descriptor")
    parent = Child.start(["sh", "-c", "sleep 600 & wait"], os.environ, streams=SILENT, leads_group=True)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while not children.read_text().split():
        time.sleep(0.01)
    pid = int(children.read_text().split()[0])
    other = forked_child(os.pidfd_open(pid))
    assert other.pid == pid
    assert not other.is_stopped()
    os.kill(pid, signal.SIGSTOP)
    while not other.is_stopped():
        time.sleep(0.01)
    parent.end()


def test_one_that_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(child_module.sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        Child.connected(["firelane.text.rendering.template_worker"], os.environ)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
