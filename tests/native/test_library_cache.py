"""The cache of compiled kernels: its keys and digests, builds in parts, and what killed processes leave."""

from __future__ import annotations

import ctypes as ct
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from workshop import Workshop

from firelane import env
from firelane.errors import CacheError, CompilerError
from firelane.native.machine import CpuIdentity, choose_isa, compile_flags
from firelane.native.toolchain import append_digest, find_compiler, has_digest

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


def test_what_a_killed_process_left_is_removed(shop: Workshop) -> None:
    library = shop.build(shop.compiler())
    left = library.with_name(f"{library.name}.123.tmp")
    left.write_bytes(b"half")
    library.unlink()
    assert shop.build(shop.compiler()) == library
    assert not left.exists()


def test_an_unusable_cache_directory(shop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"cannot write compiled kernels to .*FIRELANE_CACHE_DIR"):
        shop.build(shop.compiler(), cache_dir=tmp_path / "file")


def test_a_full_disk(shop: Workshop) -> None:
    tool = shop.compiler('echo "as: cannot write: No space left on device"; exit 1')
    with pytest.raises(CacheError, match="No space left on device; free space"):
        shop.build(tool)


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
