"""The native part of the decoder under AddressSanitizer and UBSan: heap buffers of exactly the needed
size.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from firelane.weights.formats.native import SOURCES

HARNESS = """
#include <cstdio>
#include <cstdlib>
#include <memory>
#include "planes.h"

static uint64_t state = 1;
static uint64_t next() { return state = state * 6364136223846793005u + 1442695040888963407u; }

int main() {
  for (size_t round = 0; round < 3000; ++round) {
    const size_t n = round < 600 ? round : (next() >> 33) % 70000;
    std::unique_ptr<uint8_t[]> sm(new uint8_t[n]), exponent(new uint8_t[n]), sm2(new uint8_t[n]),
        exponent2(new uint8_t[n]);
    std::unique_ptr<uint16_t[]> bits(new uint16_t[n]);
    for (size_t i = 0; i < n; ++i) { sm[i] = next() >> 40; exponent[i] = next() >> 40; }
    firelane::merge_planes(sm.get(), exponent.get(), bits.get(), n);
    firelane::split_planes(bits.get(), sm2.get(), exponent2.get(), n);
    int64_t counts[256] = {}, total = 0;
    firelane::count_exponents(bits.get(), n, counts);
    for (size_t i = 0; i < n; ++i) {
      const int sign = sm[i] & 1, want = sign << 15 | exponent[i] << 7 | sm[i] >> 1;
      if (bits[i] != want || sm[i] != sm2[i] || exponent[i] != exponent2[i]) return std::puts("wrong"), 1;
    }
    for (int64_t count : counts) total += count;
    if (total != static_cast<int64_t>(n)) return std::puts("wrong count"), 1;
  }
  return std::puts("done"), 0;
}
"""
BROKEN = HARNESS.replace("sm2.get(), exponent2.get(), n)", "sm2.get(), exponent2.get(), n + 1)")


def run(source: str, where: Path) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    flags = ["-std=c++20", "-O2", "-g", "-Wall", "-Werror", "-fsanitize=address,undefined"]
    (where / "harness.cpp").write_text("int main() {}")
    command = [compiler, *flags, f"-I{SOURCES}", str(where / "harness.cpp"), "-o", str(where / "harness")]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the compiler has no AddressSanitizer")
    (where / "harness.cpp").write_text(source)
    subprocess.run(command, check=True)
    return subprocess.run([where / "harness"], capture_output=True, text=True, timeout=600)


def test_no_read_or_write_outside(tmp_path: Path) -> None:
    done = run(HARNESS, tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_harness_can_fail(tmp_path: Path) -> None:
    done = run(BROKEN, tmp_path)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
