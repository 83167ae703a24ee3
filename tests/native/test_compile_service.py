"""Kernels for processes that may not write them: what the helper compiles, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from firelane.errors import CacheError, CompilerError
from firelane.native.compile_requests import BuildFailed, BuildRequest, Made, Taken, TakesRequest, ask
from firelane.native.compile_service import HELPERS, answer_to, fork_service
from firelane.sandbox import landlock
from firelane.sandbox.system import this_machine

MACHINE = this_machine()
SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }'


def build(**changes) -> BuildRequest:
    fields = {"source": SOURCE, "include_dirs": [], "flags": ["-O1"], "cpu_key": "k", "name": "n", "parts": 1}
    return BuildRequest(**(fields | changes))


def answered(request, cache: Path):
    return answer_to(msgspec.json.encode(request), cache)


@pytest.mark.parametrize(
    "flag",
    ["-fplugin=/tmp/x.so", "-B/tmp", "-specs=/tmp/s", "-wrapper,/tmp/w", "-I/etc", "@/tmp/file", "-o/x"],
)
def test_flags_that_make_a_compiler_run_or_read_other_files_are_refused(tmp_path: Path, flag: str) -> None:
    found = answered(build(flags=["-O1", flag]), tmp_path)
    assert isinstance(found, BuildFailed)
    assert flag in found.reason
    assert not list(tmp_path.iterdir())
    assert isinstance(answered(TakesRequest(flags=[flag]), tmp_path), BuildFailed)


def test_headers_are_of_this_package(tmp_path: Path) -> None:
    found = answered(build(include_dirs=["/etc"]), tmp_path)
    assert isinstance(found, BuildFailed)
    assert "/etc" in found.reason


@pytest.mark.parametrize("content", [b"", b"{", b'{"type": "build"}', b'{"type": "other"}', b"\xff" * 9])
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    assert isinstance(answer_to(content, tmp_path), BuildFailed)


def test_other_sources_get_other_names(tmp_path: Path) -> None:
    """Nobody gets a library under the name of one that was made from something else."""
    first, second = answered(build(), tmp_path), answered(build(source=SOURCE + "//"), tmp_path)
    assert isinstance(first, Made)
    assert isinstance(second, Made)
    assert first.path != second.path
    assert answered(build(), tmp_path) == first
    assert answered(build(flags=["-O1", "-DFIRELANE_X=1"]), tmp_path) not in (first, second)


ASKER = """
import ctypes, json, os, sys
from functools import partial
from pathlib import Path
from firelane import env
from firelane.native.compile_service import fork_service
from firelane.native.toolchain import find_compiler
from firelane.sandbox.confine import confine, confine_compiler

cache = Path(sys.argv[1])
env.set_compiler(fork_service(cache, partial(confine_compiler, env.read(), cache)))
confine(env.read(), cache, [])
found = {}
compiler = find_compiler(env.read())
arguments = dict(include_dirs=[], flags=["-O1"], cache_dir=cache, cpu_key="k", name="a test")
library = compiler.build(sys.argv[2], **arguments, parts=2)
found["answer"] = ctypes.CDLL(str(library)).answer()
found["takes"] = compiler.takes(["-mno-such-thing"], cache), compiler.takes(["-O2"], cache)
for name, work in {
    "plant": lambda: library.write_bytes(b"x"),
    "replace": lambda: library.unlink(),
    "add": lambda: (library.parent / "other.so").write_bytes(b"x"),
}.items():
    try:
        work()
        found[name] = "done"
    except OSError as error:
        found[name] = type(error).__name__
try:
    compiler.build("no C++ at all", **arguments)
except Exception as error:
    found["failure"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.skipif(MACHINE is None or landlock.abi(MACHINE) == 0, reason="this kernel has no Landlock")
def test_a_confined_process_gets_kernels_and_writes_none(tmp_path: Path) -> None:
    source = "#if FIRELANE_PART == 1\n" + SOURCE + "\n#endif"
    command = [sys.executable, "-c", ASKER, str(tmp_path), source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["answer"] == 42
    assert found["takes"] == [False, True]
    assert [found[name] for name in ("plant", "replace", "add")] == ["PermissionError"] * 3
    assert "failed on a test" in found["failure"]
    assert ".log" in found["failure"]


def test_helpers_that_have_gone_are_told(tmp_path: Path) -> None:
    service = fork_service(tmp_path, lambda: os._exit(0))
    try:
        for _ in range(HELPERS):
            os.wait()
        with pytest.raises(CompilerError, match="has ended"):
            ask(service, TakesRequest(flags=[]))
    finally:
        os.close(service)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that waits at its first run until somebody has opened its pipe and closed it. Returns the pipe."""
    path, pipe = tmp_path / "cxx", tmp_path / "pipe"
    os.mkfifo(pipe)
    waits = f"mkdir {tmp_path}/once 2> /dev/null && exec 3> {pipe} && sleep 0.1 && yes >&3"
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *--version) echo 1.0; exit;; esac\n{waits}\n'
        'while [ "$1" != -o ]; do shift; done; echo made > "$2"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("FIRELANE_CXX", str(path))
    return pipe


@pytest.fixture
def service(tmp_path: Path) -> Iterator[int]:
    sock = fork_service(tmp_path / "cache", lambda: None)
    pids = helpers()
    yield sock
    os.close(sock)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def helpers() -> list[int]:
    """This process's, once each of them has its name."""
    found: list[int] = []
    while len(found) < HELPERS:
        lists = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
        names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pids in lists for pid in pids}
        found = [int(pid) for pid, name in names.items() if name == "compile_helper"]
    return found


def workers(helper: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{helper}/task/{helper}/children").read_text().split()]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_one_helper_is_enough(service: int, fault: signal.Signals) -> None:
    os.kill(helpers()[0], fault)
    for number in range(3):
        assert ask(service, TakesRequest(flags=[f"-O{number}"])) == Taken(True)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("whose", ["helper", "worker"])
def test_a_library_is_made_whoever_is_lost_meanwhile(
    compiler: Path, service: int, fault: signal.Signals, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(ask, service, build())
        pipe = os.open(compiler, os.O_RDONLY)  # returns when the compiler runs
        (helper,) = [pid for pid in helpers() if workers(pid)]
        os.kill(helper if whose == "helper" else workers(helper)[0], fault)
        is_replaced = (whose, fault) != ("helper", signal.SIGSTOP)  # else its worker goes on
        if not is_replaced:
            os.close(pipe)
        found = made.result(60)
    if is_replaced:
        os.close(pipe)
    assert isinstance(found, Made)
    assert Path(found.path).read_bytes().startswith(b"made\n")
    assert len(caplog.messages) == is_replaced


def test_a_cache_that_cannot_be_written_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("no directory")
    service = fork_service(tmp_path, lambda: None)
    try:
        assert ask(service, TakesRequest(flags=["-O1"])) == Taken(True)
        with pytest.raises(CacheError, match="cannot write compiled kernels"):
            ask(service, build())
    finally:
        os.close(service)
