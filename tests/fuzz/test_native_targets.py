"""Targets in C++: all inputs of their corpora under a compiler's sanitizers, and what the parts promise."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fuzz import native_build
from fuzz.native_build import FUZZING, REPLAYING, BuildError, Kind, build, compiler_of, native_names
from fuzz.native_build import native_options as options_of
from fuzz.target import CORPUS

BROKEN = """
#include "cases.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Room<std::uint8_t> room(4);
  Case one(data, size);
  const std::size_t at = one.byte();
  PROMISE(at < 100);
  if (one.byte()) room[at] = 1;
  return 0;
}
"""


def has_compiler() -> bool:
    try:
        compiler_of(REPLAYING)
    except BuildError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no compiler with sanitizers")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize("name", native_names())
def test_inputs_of_the_corpus(name: str, programs: Path) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    done = subprocess.run([build(name, REPLAYING, programs), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == list(map(str, files))


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of a target that breaks for some inputs."""
    monkeypatch.setattr(native_build, "HERE", tmp_path)
    (tmp_path / "broken.cpp").write_text(BROKEN)
    return build("native_broken", REPLAYING, tmp_path / "programs")


@pytest.mark.parametrize(
    ("data", "told"), [(b"\x03\x01", ""), (b"\x64", "broken at"), (b"\x04\x01", "heap-buffer-overflow")]
)
def test_what_breaks_is_told(broken: Path, tmp_path: Path, data: bytes, told: str) -> None:
    file = tmp_path / "input"
    file.write_bytes(data)
    done = subprocess.run([broken, file], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not told)
    assert told in done.stderr


def test_a_program_is_made_anew_when_its_source_has_changed(broken: Path, tmp_path: Path) -> None:
    def made() -> Path:
        return build("native_broken", REPLAYING, tmp_path / "programs")

    before = broken.stat().st_mtime_ns
    assert made() == broken
    assert broken.stat().st_mtime_ns == before
    (tmp_path / "broken.cpp").write_text(BROKEN.replace("100", "3"))
    assert made() != broken
    assert not broken.exists()
    (tmp_path / "broken.cpp").write_text("no C++ at all")
    with pytest.raises(BuildError, match="the compiler said"):
        made()


def test_a_compiler_that_is_missing_is_named() -> None:
    with pytest.raises(BuildError, match="clang is needed"):
        compiler_of(Kind(("no-such-clang++",), (), (), "clang is needed"))
    assert all(name.startswith("clang++") for name in FUZZING.compilers)


def test_bounds_of_a_run_reach_libfuzzer(tmp_path: Path) -> None:
    found = options_of({"cases": 7, "seed": 3, "crashes": tmp_path})
    assert {"-runs=7", "-seed=3", "-max_total_time=0", f"-artifact_prefix={tmp_path}/"} <= set(found)
    assert "-max_total_time=9" in options_of({"cases": 7, "seed": 3, "crashes": tmp_path, "seconds": 9})
