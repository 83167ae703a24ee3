"""Finding a compiler, and the cache of compiled kernels. The compiler is a script that counts its runs."""

from __future__ import annotations

import ctypes as ct
import logging
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from firelane import env
from firelane.errors import CacheError, CompilerError, UsageError
from firelane.native import toolchain
from firelane.native.machine import CpuIdentity, choose_isa, compile_flags, cpu_identity, supported_isas
from firelane.native.toolchain import (
    Toolchain,
    append_digest,
    find_compiler,
    first_error,
    has_digest,
    zig_flags,
)

ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return %d; }\n'


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """A fake compiler that copies its source to its output, and a cache directory."""

    root: Path

    @property
    def runs(self) -> int:
        log = self.root / "runs"
        return len(log.read_text().splitlines()) if log.exists() else 0

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def compiler(self, script: str = "") -> Toolchain:
        path = self.root / "cxx"
        copy = f'echo run >> {self.root}/runs\nwhile [ "$1" != -o ]; do src=$1; shift; done\ncp "$src" "$2"\n'
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *--version) echo "fake 1.0"; exit 0;; esac\n{script}\n{copy}'
        )
        path.chmod(0o755)
        return Toolchain(command=(str(path),), version="fake 1.0")

    def build(self, tool: Toolchain, source: str = "int x;", **changes: object) -> Path:
        settings = {
            "include_dirs": [],
            "flags": ["-O1"],
            "cpu_key": "cpu",
            "cache_dir": self.cache,
            "name": "it",
        }
        return tool.build(source, **{**settings, **changes})  # type: ignore[arg-type]


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(root=tmp_path)


# ---- the cache


def test_second_build_is_found(shop: Workshop) -> None:
    tool = shop.compiler()
    first = shop.build(tool)
    assert first == shop.build(tool)
    assert first.parent == shop.cache / "kernels"
    assert shop.runs == 1


def test_all_that_matters_is_in_the_key(shop: Workshop, tmp_path: Path) -> None:
    tool, headers = shop.compiler(), tmp_path / "include"
    headers.mkdir()
    (headers / "a.h").write_text("int a;")
    paths = [
        shop.build(tool),
        shop.build(tool, source="int y;"),
        shop.build(tool, flags=["-O2"]),
        shop.build(tool, cpu_key="another"),
        shop.build(replace(tool, version="fake 2.0")),
        shop.build(tool, include_dirs=[headers]),
    ]
    (headers / "a.h").write_text("int b;")
    paths.append(shop.build(tool, include_dirs=[headers]))
    assert len(set(paths)) == shop.runs == len(paths)


def test_the_name_is_not_in_the_key(shop: Workshop) -> None:
    assert shop.build(shop.compiler(), name="a") == shop.build(shop.compiler(), name="b")


@pytest.mark.parametrize("keep", [0, 10, 35, -1])
def test_a_cut_off_library_is_compiled_again(shop: Workshop, keep: int) -> None:
    tool = shop.compiler()
    library = shop.build(tool, source="int x;" * 10)
    whole = library.read_bytes()
    library.write_bytes(whole[:keep])
    assert shop.build(tool, source="int x;" * 10).read_bytes() == whole
    assert shop.runs == 2


def test_a_flipped_bit_changes_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some bytes")
    assert not has_digest(path, "key")
    append_digest(path, "key")
    assert has_digest(path, "key")
    assert not has_digest(path, "another key")
    path.write_bytes(b"S" + path.read_bytes()[1:])
    assert not has_digest(path, "key")


def test_the_library_of_another_key_is_not_taken(shop: Workshop) -> None:
    tool = shop.compiler()
    first, second = shop.build(tool, source="int a;"), shop.build(tool, source="int b;")
    want = second.read_bytes()
    shutil.copy(first, second)
    assert shop.build(tool, source="int b;").read_bytes() == want
    assert shop.runs == 3


def test_a_directory_that_everybody_can_write_to_is_refused(shop: Workshop) -> None:
    shop.build(shop.compiler()).parent.chmod(0o777)
    with pytest.raises(CacheError, match=r"kernels: can be written by everybody.*FIRELANE_CACHE_DIR"):
        shop.build(shop.compiler())


def test_a_pipe_is_no_library(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    assert not has_digest(tmp_path / "file", "key")


def test_builds_at_the_same_time_compile_once(shop: Workshop) -> None:
    tool = shop.compiler()
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: shop.build(tool), range(16)))
    assert len(paths) == 1
    assert shop.runs == 1


def test_a_build_leaves_nothing_half_done(shop: Workshop) -> None:
    shop.build(shop.compiler())
    with pytest.raises(CompilerError):
        shop.build(shop.compiler("echo half > /dev/null; exit 3"), source="int z;")
    assert not list(shop.cache.rglob("*.tmp"))
    assert len(list(shop.cache.rglob("*.so"))) == 1


# ---- in parts


def test_parts_are_compiled_and_linked(tmp_path: Path) -> None:
    source = """
    extern "C" int half();
    #if FIRELANE_PART != 1
    extern "C" int half() { return 21; }
    #endif
    #if FIRELANE_PART != 2
    extern "C" __attribute__((visibility("default"))) int answer() { return 2 * half(); }
    #endif
    """
    tool = find_compiler(env.read())
    for parts in (1, 2):
        library = Workshop(root=tmp_path / str(parts)).build(tool, source=source, parts=parts)
        assert ct.CDLL(str(library)).answer() == 42
        assert sorted(path.suffix for path in library.parent.iterdir()) == [".cpp", ".lock", ".so"]


def test_parts_need_three_runs_and_make_the_same_library(shop: Workshop) -> None:
    library = shop.build(shop.compiler(), parts=2)
    assert shop.runs == 3
    assert shop.build(shop.compiler()) == library  # whoever made it
    assert shop.runs == 3


def test_a_part_that_fails_tells_its_error(shop: Workshop) -> None:
    tool = shop.compiler('case "$*" in *PART=2*) echo "b.h:1: error: no"; exit 1;; esac')
    with pytest.raises(CompilerError, match=r"failed on it: b\.h:1: error: no"):
        shop.build(tool, parts=2)
    assert not list(shop.cache.rglob("*.parts"))
    assert not list(shop.cache.rglob("*.tmp"))


def test_parts_of_a_killed_process_are_removed(shop: Workshop) -> None:
    library = shop.build(shop.compiler(), parts=2)
    left = library.with_suffix(".parts")
    left.mkdir()
    (left / "1.o").write_bytes(b"half")
    library.unlink()
    assert shop.build(shop.compiler(), parts=2) == library
    assert not left.exists()


@pytest.mark.parametrize("parts", [1, 2])
def test_temporary_files_of_a_killed_compiler_go_with_the_next_build(shop: Workshop, parts: int) -> None:
    dies = shop.compiler('echo half > "$TMPDIR/cc1.s"; kill -9 $$')
    with pytest.raises(CompilerError, match="exit code -9"):
        shop.build(dies, parts=parts)
    assert not list(shop.cache.rglob("cc1.s"))
    seen = shop.compiler('ls -A "$TMPDIR" >> "$(dirname "$0")/seen"; echo half > "$TMPDIR/cc1.s"')
    left = shop.build(seen, parts=parts).with_suffix(".parts")
    left.mkdir()
    (left / "cc2.s").write_text("of a process that was killed")
    shop.build(seen, parts=parts, cpu_key="other")
    left.with_suffix(".so").unlink()
    shop.build(seen, parts=parts)
    assert "cc2.s" not in (shop.root / "seen").read_text()
    assert not list(shop.cache.rglob("cc?.s"))


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


def test_what_a_killed_process_left_is_removed(shop: Workshop) -> None:
    library = shop.build(shop.compiler())
    left = library.with_name(f"{library.name}.123.tmp")
    left.write_bytes(b"half")
    library.unlink()
    assert shop.build(shop.compiler()) == library
    assert not left.exists()


def test_a_compiler_that_is_gone(shop: Workshop) -> None:
    with pytest.raises(CompilerError, match=r"cannot run /no/such \(No such file or directory\): install"):
        shop.build(Toolchain(command=("/no/such",), version="1"))


def test_first_error() -> None:
    assert first_error("a\n  b: fatal error: c\nd error") == "b: fatal error: c"
    assert first_error("all is well") == ""


def test_an_unusable_cache_directory(shop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"cannot write compiled kernels to .*FIRELANE_CACHE_DIR"):
        shop.build(shop.compiler(), cache_dir=tmp_path / "file")


def test_a_full_disk(shop: Workshop) -> None:
    tool = shop.compiler('echo "as: cannot write: No space left on device"; exit 1')
    with pytest.raises(CacheError, match="No space left on device; free space"):
        shop.build(tool)


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


def test_kernels_of_another_cpu_are_compiled_again(
    shop: Workshop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache on a disk that moved to an older machine, or a container that moved."""
    monkeypatch.setattr(logging.getLogger("firelane"), "propagate", True)
    caplog.set_level("DEBUG", logger="firelane")
    new = CpuIdentity(
        model="a CPU", architecture="x86_64", features=frozenset({"avx2", "fma", "f16c"}), usable_cores=2
    )
    old = replace(new, features=frozenset({"avx2"}))
    tool, libraries = shop.compiler(), list[Path]()
    for cpu in (new, old, new, old):
        flags = compile_flags(choose_isa("avx2", cpu), cpu)
        libraries.append(shop.build(tool, cpu_key=cpu.key, flags=flags, name="the kernels"))
    assert shop.runs == len(set(libraries)) == 2
    line = "compiling the kernels: none in the cache for this CPU, compiler and version"
    assert [record.getMessage() for record in caplog.records] == [line, line]


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
