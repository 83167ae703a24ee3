"""Rights of a confined process, tried out in one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import firelane
from firelane import env
from firelane.sandbox import confine, landlock, seccomp
from firelane.sandbox.system import this_machine

MACHINE = this_machine()
needs_landlock = pytest.mark.skipif(
    MACHINE is None or landlock.abi(MACHINE) == 0, reason="this kernel has no Landlock"
)
needs_filters = pytest.mark.skipif(
    MACHINE is None or not seccomp.has_filters(MACHINE), reason="this kernel takes no seccomp filters"
)

TRIES = """
import ctypes, json, os, socket, subprocess, sys, threading
from pathlib import Path
from firelane import env
from firelane.sandbox import confine

foreign, model, cache, parent = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), os.getppid()
libc = ctypes.CDLL(None, use_errno=True)


def trace():
    if libc.ptrace(16, parent, 0, 0):
        raise OSError(ctypes.get_errno(), "")


def unshare():
    if libc.unshare(0x10000000):
        raise OSError(ctypes.get_errno(), "")


def in_a_thread(work):
    # As what is loaded later has it: threads are made after the sandbox has closed.
    found = []
    def run():
        try:
            work()
            found.append("done")
        except OSError as error:
            found.append(type(error).__name__)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def replaced(path):
    (path / "new").write_text("1")
    (path / "new").replace(path / "file")
    (path / "file").unlink()


TRIES = {
    "socket": lambda: socket.socket().close(),
    "unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
    "datagram pair": lambda: socket.socketpair(type=socket.SOCK_DGRAM),
    "stream pair": lambda: socket.socketpair(),
    "read foreign": lambda: foreign.read_text(),
    "list foreign": lambda: os.listdir(foreign.parent),
    "change foreign": lambda: foreign.chmod(0o777),
    "truncate foreign": lambda: os.truncate(foreign, 0),
    "environment of parent": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
    "read model": lambda: (model / "config.json").read_text(),
    "write model": lambda: (model / "config.json").write_text(""),
    "read linked weights": lambda: (model / "model.safetensors").read_text(),
    "write cache": lambda: replaced(cache / "weights"),
    "write modules": lambda: replaced(cache / "python"),
    "write kernels": lambda: replaced(cache / "kernels"),
    "write beside caches": lambda: (cache / "data").mkdir(),
    "ptrace": trace,
    "signal parent": lambda: os.kill(parent, 0),
    "program": lambda: subprocess.run(["true"], check=True),
    "new namespace": unshare,
    "memory": lambda: os.close(os.memfd_create("x")),
    "random": lambda: Path("/dev/urandom").open("rb").close(),
}
confine.confine(env.read({"FIRELANE_CXX": "/nowhere"}), cache, [model])
before = {name: in_a_thread(work) for name, work in TRIES.items()}
confine.serve_only()
print(json.dumps([before, in_a_thread(TRIES["program"])]))
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory):
    """Run the attempts in a sandbox; give the result of each, and of starting a program once that is
    forbidden."""
    root = tmp_path_factory.mktemp("sandbox")
    (root / "blobs").mkdir()
    (root / "blobs" / "1").write_text("weights")
    (root / "blobs" / "2").write_text("of another model")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text("{}")
    (root / "model" / "model.safetensors").symlink_to(root / "blobs" / "1")
    arguments = [str(path) for path in (root / "blobs" / "2", root / "model", root / "cache")]
    done = subprocess.run(
        [sys.executable, "-c", TRIES, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_landlock
@pytest.mark.parametrize(
    ("attempt", "outcome"),
    [
        ("read foreign", "PermissionError"),
        ("list foreign", "PermissionError"),
        ("truncate foreign", "PermissionError"),
        ("environment of parent", "PermissionError"),
        ("read model", "done"),
        ("read linked weights", "done"),
        ("write model", "PermissionError"),
        ("write cache", "done"),
        ("write kernels", "PermissionError"),
        ("write modules", "PermissionError"),
        ("write beside caches", "PermissionError"),
        ("random", "done"),
    ],
)
def test_files(tried, attempt: str, outcome: str) -> None:
    assert tried[0][attempt] == outcome


@needs_filters
@pytest.mark.parametrize(
    "attempt",
    ["socket", "unix socket", "datagram pair", "change foreign", "ptrace", "new namespace"],
)
def test_calls_that_fail(tried, attempt: str) -> None:
    assert tried[0][attempt] == "PermissionError"


@needs_filters
def test_what_an_engine_needs(tried) -> None:
    assert tried[0]["stream pair"] == tried[0]["memory"] == tried[0]["program"] == "done"
    assert tried[1] == "PermissionError"  # once its model is loaded


@pytest.mark.skipif(MACHINE is None or landlock.abi(MACHINE) < 6, reason="this Landlock knows no signals")
def test_signals_reach_no_process_outside(tried) -> None:
    assert tried[0]["signal parent"] == "PermissionError"


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "this_machine", lambda: None)
    assert "engines have all rights" in (confine.lacks(env.read({})) or "")
    monkeypatch.setattr(confine, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(landlock, "abi", lambda _: 0)
    monkeypatch.setattr(seccomp, "has_filters", lambda _: False)
    told = confine.lacks(env.read({})) or ""
    assert "the kernel has no Landlock: engines may use all files" in told
    assert "no seccomp filters: engines may use the network" in told


def test_a_compiler_behind_a_script_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "my-g++"
    script.write_text("#!/bin/sh\nexec g++ $*\n")
    script.chmod(0o755)
    monkeypatch.setattr(confine, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(landlock, "abi", lambda _: 7)
    monkeypatch.setattr(seccomp, "has_filters", lambda _: True)
    assert "set FIRELANE_CXX to the compiler itself" in (
        confine.lacks(env.read({"FIRELANE_CXX": str(script)})) or ""
    )
    assert confine.lacks(env.read({"FIRELANE_CXX": sys.executable})) is None
    assert confine.lacks(env.read({"FIRELANE_CXX": "'"})) is None


WORKER = """
import socket, subprocess, sys
from firelane.sandbox.confine import confine_worker

confine_worker()
import json  # what is not loaded yet can be
for work in (lambda: open(sys.argv[1]), socket.socket, lambda: subprocess.run(["true"])):
    try:
        work()
        print("done")
    except OSError as error:
        print(type(error).__name__)
"""
STORES = """
import socket, sys
from pathlib import Path
from firelane import env
from firelane.sandbox import confine

settings, cache = env.read({"FIRELANE_CXX": "/nowhere"}), Path(sys.argv[2])
listener = ("127.0.0.1", int(sys.argv[1]))
confine.confine(settings, cache, [cache], network=True)
socket.create_connection(listener).close()
Path("/etc/hosts").read_text()
confine.forbid_network()
try:
    socket.create_connection(listener)
except OSError as error:
    print(type(error).__name__)
"""


AGENT = """
import os, socket, subprocess, sys
from firelane.sandbox.confine import confine_agent

confine_agent()
works = (
    lambda: open(sys.argv[1]),
    lambda: open(f"/proc/{os.getppid()}/environ").read(),
    lambda: subprocess.run(["true"]),
    lambda: socket.create_server(("127.0.0.1", 0)),
    lambda: os.listdir("/sys/class"),
)
for work in works:
    try:
        work()
        print("done")
    except OSError as error:
        print(type(error).__name__)
"""


@needs_landlock
@needs_filters
def test_an_agent_has_the_network_and_no_files_nor_programs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", AGENT, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*["PermissionError"] * 3, "done", "done"]


@needs_landlock
@needs_filters
def test_a_worker_reads_python_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", WORKER, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PermissionError"] * 3


@needs_filters
def test_who_reads_weights_from_a_store_has_the_network_until_then(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", STORES, str(listener.getsockname()[1]), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PermissionError"]


LAUNCHER = """
import sys
from pathlib import Path
from firelane import env
from firelane.sandbox import confine

script, made = Path(sys.argv[1]), Path(sys.argv[2])
confine.confine(env.read({"FIRELANE_CXX": str(script)}), made.parent, [])
made.chmod(0o755)
confine.serve_only()
try:
    made.chmod(0o644)
except OSError as error:
    print(type(error).__name__)
"""


@needs_filters
def test_a_compiler_behind_a_script_sets_rights_of_what_it_makes(tmp_path: Path) -> None:
    """Until there is nothing more to compile."""
    script, made = tmp_path / "my-g++", tmp_path / "made.so"
    script.write_text("#!/bin/sh\nexec g++ $*\n")
    script.chmod(0o755)
    made.touch()
    command = [sys.executable, "-c", LAUNCHER, str(script), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PermissionError"]
    assert made.stat().st_mode & 0o777 == 0o755


def test_the_module_that_tells_whether_python_is_compiled_is_there() -> None:
    """Without it, each engine would compile all modules to a directory of its own."""
    assert Path(firelane.__path__[0], *confine.IMPORTED).is_file()
