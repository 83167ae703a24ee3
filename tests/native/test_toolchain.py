"""Compilers are found, fail, and are asked for their flags. The compiler is a script that counts its runs."""

from __future__ import annotations

import ctypes as ct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from workshop import Workshop

from firelane import env
from firelane.errors import CompilerError, UsageError
from firelane.native import toolchain
from firelane.native.machine import compile_flags, cpu_identity, supported_isas
from firelane.native.toolchain import Toolchain, find_compiler, first_error, zig_flags

ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return %d; }\n'


# ---- errors


def test_a_failing_compiler_tells_its_first_error_and_the_log(shop: Workshop) -> None:
    tool = shop.compiler('echo "note: hm"; echo "a.cpp:3: error: no such thing" >&2; exit 1')
    with pytest.raises(
        CompilerError, match=r"failed on it: a.cpp:3: error: no such thing; the full log is"
    ) as info:
        shop.build(tool)
    assert "\n" not in str(info.value)
    log = Path(str(info.value).rsplit(" ", 1)[1])
    assert "note: hm" in log.read_text()


def test_a_killed_compiler_is_an_error(shop: Workshop) -> None:
    with pytest.raises(CompilerError, match="exit code -9"):
        shop.build(shop.compiler("kill -9 $$"))


@pytest.mark.parametrize(
    "death",
    [
        "kill -9 $$",
        "kill -15 $$",
        'echo "g++: fatal error: Killed signal terminated program cc1plus"; exit 1',
    ],
)
def test_a_compiler_that_is_killed_twice_is_started_again(shop: Workshop, death: str, caplog) -> None:
    tool = shop.compiler(
        f'echo >> "$(dirname "$0")/runs"; [ $(wc -l < "$(dirname "$0")/runs") -gt 2 ] || {{ {death}; }}'
    )
    assert shop.build(tool).is_file()
    assert [line.split()[:2] for line in caplog.messages] == [["child_replaced", "kind=compiler"]] * 2


def test_a_compiler_that_crashes_is_not_started_again(shop: Workshop) -> None:
    tool = shop.compiler('echo >> "$(dirname "$0")/runs"; kill -SEGV $$')
    with pytest.raises(CompilerError, match="exit code -11"):
        shop.build(tool)
    assert len((shop.root / "runs").read_text().splitlines()) == 1


def test_a_compiler_that_makes_nothing(shop: Workshop) -> None:
    with pytest.raises(CompilerError, match="no error and no library"):
        shop.build(shop.compiler("exit 0"))


def test_a_compiler_that_is_gone(shop: Workshop) -> None:
    with pytest.raises(CompilerError, match=r"cannot run /no/such \(No such file or directory\): install"):
        shop.build(Toolchain(command=("/no/such",), version="1"))


def test_first_error() -> None:
    assert first_error("a\n  b: fatal error: c\nd error") == "b: fatal error: c"
    assert first_error("all is well") == ""


def settings_of(cxx: str = "") -> env.Environment:
    return env.Environment(cache_dir=Path("/nowhere"), cxx=cxx)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda _: None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        CompilerError, match=r"no C\+\+ compiler: install g\+\+.*pip install 'firelane\[compiler\]'"
    ):
        find_compiler(settings_of())


def test_ziglang_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.shutil, "which", lambda _: None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(toolchain, "_version", lambda command: " ".join(command[1:]))
    found = find_compiler(settings_of())
    assert found.command == (sys.executable, "-m", "ziglang", "c++")
    assert found.is_zig


def test_compiler_from_the_environment(shop: Workshop) -> None:
    command = (*shop.compiler().command, "-Dx")
    assert find_compiler(settings_of(" ".join(command))) == Toolchain(command=command, version="fake 1.0")
    with pytest.raises(UsageError, match="FIRELANE_CXX='/no/such' is not on PATH"):
        find_compiler(settings_of("/no/such"))


def test_a_compiler_that_does_not_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(CompilerError, match="--version failed"):
        find_compiler(settings_of(str(broken)))


def test_flags_that_a_compiler_does_not_know(shop: Workshop) -> None:
    old = shop.compiler('case "$*" in *-mavx512bf16*) exit 1;; *-fsyntax-only*) exit 0;; esac')
    assert old.takes(["-mavx512f"], shop.cache)
    assert not old.takes(["-mavx512f", "-mavx512bf16"], shop.cache)
    assert Toolchain(command=("/no/such", "zig", "c++"), version="1").takes(["-mavx512bf16"], shop.cache)
    with pytest.raises(CompilerError, match="cannot run /no/such"):
        Toolchain(command=("/no/such",), version="1").takes(["-O3"], shop.cache)


def test_a_compiler_is_asked_once_for_all_starts(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_takes", toolchain._takes.__wrapped__)  # as in a new process each time
    asked = shop.root / "asked"
    tool = shop.compiler(f'case "$*" in *-mnew*) exit 1;; *-fsyntax-only*) echo >> {asked}; exit 0;; esac')
    assert [tool.takes(["-mavx2"], shop.cache) for _ in range(3)] == [True] * 3
    assert asked.read_text() == "\n"
    assert tool.takes(["-mavx2", "-mfma"], shop.cache)
    assert replace(tool, version="fake 2.0").takes(["-mavx2"], shop.cache)
    assert asked.read_text() == "\n" * 3
    assert [tool.takes(["-mnew"], shop.cache) for _ in range(2)] == [False] * 2


def test_a_compiler_is_asked_where_the_cache_cannot_be_written(shop: Workshop) -> None:
    shop.cache.write_text("")
    assert shop.compiler('case "$*" in *-fsyntax-only*) exit 0;; esac').takes(["-mavx2"], shop.cache)


# ---- real compilers


def test_zig_flags() -> None:
    assert zig_flags(["-mavx2", "-O3", "-msse4.2", "-mtune=native"]) == ["-O3", "-mcpu=baseline+avx2+sse4_2"]
    assert zig_flags(["-march=armv8.2-a+bf16+i8mm"]) == ["-mcpu=baseline+v8_2a+bf16+i8mm"]
    assert zig_flags(["-O3"]) == ["-O3", "-mcpu=baseline"]


@pytest.mark.parametrize("isa", supported_isas(cpu_identity()))
def test_a_real_compiler_builds_a_library_that_loads(kernel_cache: Path, isa: str) -> None:
    cpu = cpu_identity()
    source = f"#ifndef FIRELANE_ISA_{isa.upper()}\n#error wrong target\n#endif\n" + ANSWER % 42
    path = find_compiler(env.read()).build(
        source,
        include_dirs=[],
        flags=compile_flags(isa, cpu),
        cache_dir=kernel_cache,
        cpu_key=cpu.key,
        name="answer",
    )
    assert ct.CDLL(str(path)).answer() == 42
