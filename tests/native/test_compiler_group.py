"""Compilers that end with whoever started them. One that reads a pipe works until somebody writes to it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firelane import env
from firelane.native import compiler_group as module
from firelane.native.compiler_group import compiler_group
from firelane.native.toolchain import find_compiler

BUILD = """
import signal, sys
from pathlib import Path
from firelane import env
from firelane.native.toolchain import find_compiler

signal.signal(signal.SIGINT, signal.default_int_handler)
find_compiler(env.read()).build(
    sys.argv[1], include_dirs=[], flags=[], cpu_key="", cache_dir=Path(sys.argv[2]), name="it", parts=2
)
"""


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGINT])
def test_a_compiler_at_work_ends_with_its_parent(tmp_path: Path, death: signal.Signals) -> None:
    """The one that the kernel knows nothing of, too: what reads the source is a grandchild, or further."""
    find_compiler(env.read())
    pipes = [tmp_path / f"{part}.h" for part in (1, 2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    source = "".join(
        f'#if FIRELANE_PART == {part}\n#include "{pipe}"\n#endif\n' for part, pipe in enumerate(pipes, 1)
    )
    command = [sys.executable, "-c", BUILD, source, str(tmp_path / "cache")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
        ends = [pipe.open("wb", buffering=0) for pipe in pipes]  # returns when a compiler reads
        parent.send_signal(death)
        for end in ends:
            wait_for_no_reader(end.fileno())
            end.close()
        assert parent.wait() != 0


def wait_for_no_reader(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)
    assert poll.poll(60_000), "a compiler is left"


def test_what_is_left_in_a_group_is_killed_with_it() -> None:
    with compiler_group() as group:
        sleeper = subprocess.Popen(["sleep", "60"], process_group=group)
        assert os.getpgid(sleeper.pid) == group != os.getpgid(0)
    assert sleeper.wait() == -signal.SIGKILL


def test_a_system_without_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHELL", "/no/such/shell")
    with compiler_group() as group:
        assert group is None
        assert subprocess.run(["true"], process_group=group).returncode == 0
