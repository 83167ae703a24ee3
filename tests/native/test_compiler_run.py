"""Compilers that other processes kill and stop while they work: each run ends, and is done again."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firelane import env
from firelane.errors import CompilerError
from firelane.native import toolchain
from firelane.native.compiler_group import compiler_group
from firelane.native.compiler_run import run_compiler
from firelane.native.toolchain import Toolchain, find_compiler

FAULTS = [signal.SIGKILL, signal.SIGSTOP]
SOURCE = '#include "%s"\nextern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


def script(folder: Path, *lines: str) -> str:
    """A program that counts its runs in `folder`/runs, and then does what the lines say."""
    path = folder / "cxx"
    path.write_text("\n".join(["#!/bin/sh", f"echo >> {folder}/runs", f"n=$(wc -l < {folder}/runs)", *lines]))
    path.chmod(0o755)
    return str(path)


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


def readers(path: Path) -> Iterator[int]:
    """Processes that have a file open."""
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if fd.readlink() == path:
                yield int(fd.parts[2])


def build(folder: Path, source: str, parts: int = 1) -> Path:
    compiler = find_compiler(env.read())
    changes = {"include_dirs": [], "flags": ["-O0"], "cpu_key": "", "cache_dir": folder / "cache"}
    return compiler.build(source, name="it", parts=parts, **changes)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_program_of_a_compiler_that_is_lost_is_replaced(tmp_path, caplog, fault, parts) -> None:
    """A real one: what reads the source is no child of whoever has started the compiler."""
    header = tmp_path / "waits.h"
    os.mkfifo(header)
    source = f"#if FIRELANE_PART != 2\n{SOURCE % header}#endif\n"
    thread, found = in_thread(lambda: build(tmp_path, source, parts))
    with header.open("wb", buffering=0) as first:  # returns when a compiler reads
        (pid,) = set(readers(header)) - {os.getpid()}
        os.kill(pid, fault)
        poll = select.poll()
        poll.register(first.fileno(), 0)
        assert poll.poll(60_000), "it is left"
    header.open("wb").close()  # returns when another one reads
    thread.join(60)
    assert found
    assert [line.split()[:2] for line in caplog.messages] == [["child_replaced", "kind=compiler"]]


def test_what_a_killed_compiler_has_started_holds_up_nobody(tmp_path) -> None:
    """It would go on for a minute, at the other end of the compiler's output."""
    orphan = f"{{ sleep 1000 & echo $! > {tmp_path}/pid; kill -KILL $$; }}"
    command = [script(tmp_path, f"[ $n -gt 1 ] || {orphan}", "echo done")]
    with compiler_group() as group:
        done = run_compiler(command, {}, name="it", group=group)
        assert done.stdout == "done\n"
        assert not any(os.getpgid(pid) == group for pid in running(int((tmp_path / "pid").read_text())))


def running(pid: int) -> list[int]:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return []
    return [] if state == "Z" else [pid]


def test_a_compiler_that_stops_itself_is_killed_and_started_again(tmp_path) -> None:
    command = [script(tmp_path, "[ $n -gt 2 ] || kill -STOP $$", "echo done")]
    with compiler_group() as group:
        done = run_compiler(command, {}, name="it", group=group)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert runs(tmp_path) == 3


def test_a_compiler_without_a_group_is_watched_alone(tmp_path) -> None:
    done = run_compiler([script(tmp_path, "[ $n -gt 1 ] || kill -STOP $$", "echo done")], {}, name="it")
    assert done.stdout == "done\n"


@pytest.mark.parametrize(
    "told",
    [
        "g++: fatal error: Killed signal terminated program as",
        "collect2: fatal error: ld terminated with signal 9 [Killed]",
        "clang: error: unable to execute command: Killed",
    ],
)
def test_what_compilers_say_of_a_program_that_was_killed(tmp_path, told: str) -> None:
    line = f'[ $n -gt 1 ] || {{ echo "{told}" >&2; exit 1; }}'
    assert run_compiler([script(tmp_path, line)], {}, name="it").returncode == 0
    assert runs(tmp_path) == 2


def test_an_error_of_the_source_is_told_once(tmp_path) -> None:
    done = run_compiler([script(tmp_path, "echo 'a.cpp:1: error: no'; exit 1")], {}, name="it")
    assert (done.returncode, runs(tmp_path)) == (1, 1)


def test_words_of_a_run_that_went_well_are_no_death(tmp_path) -> None:
    run_compiler([script(tmp_path, "echo 'ld terminated with signal 9'")], {}, name="it")
    assert runs(tmp_path) == 1


@pytest.mark.parametrize("fault", ["KILL", "STOP"])
def test_a_compiler_that_is_lost_when_it_is_asked_for_flags_knows_them_still(tmp_path, fault: str) -> None:
    """A no would have the kernels compiled for a lesser processor."""
    words = (script(tmp_path, f"[ $n -gt 1 ] || kill -{fault} $$"),)
    assert Toolchain(command=words, version="1").takes(["-mfine"], tmp_path / "cache")
    assert runs(tmp_path) == 2


def test_a_compiler_that_is_always_killed_says_nothing_of_its_flags(tmp_path) -> None:
    words = (script(tmp_path, "kill -KILL $$"),)
    with pytest.raises(CompilerError, match="was killed by SIGKILL when it was asked for its flags"):
        Toolchain(command=words, version="1").takes(["-mfine"], tmp_path / "cache")


def test_a_version_is_asked_for_again(tmp_path) -> None:
    words = script(tmp_path, "[ $n -gt 1 ] || kill -KILL $$", "echo warning >&2; echo 1.0; echo more")
    assert toolchain._version([words]) == "1.0"


def test_a_shell_that_is_stopped_keeps_nobody_waiting() -> None:
    with compiler_group() as group:
        assert group is not None
        os.kill(group, signal.SIGSTOP)
    with pytest.raises(ProcessLookupError):
        os.kill(group, 0)
