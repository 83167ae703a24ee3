"""The kernels of a model that is not tiny: optimised in full and compiled in two parts, they give the bits of
those of a tiny one, which are compiled quickly and in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firelane.backends.cpu.codegen import compile as compiling
from tests.backends.cpu_harness import Chunk, machine, small_spec


def test_the_bits_do_not_depend_on_how_it_is_compiled(
    kernel_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = run(kernel_cache)
    monkeypatch.setattr(compiling, "is_tiny", lambda _: False)
    assert run(tmp_path) == quick


def run(cache_dir: Path) -> list[bytes]:
    """All activations of a prompt and of a token after it."""
    m = machine(small_spec(), cache_dir)
    try:
        m.give_blocks(0, range(4))
        m.greedy(0, np.random.default_rng(3).integers(0, 331, 40).tolist())
        m.executor.arena[:] = 0
        found: list[bytes] = []
        for chunk in (Chunk(0, 0, 33), Chunk(0, 33, 1)):
            m.step([chunk])
            found.append(m.executor.arena.tobytes())
        return found
    finally:
        m.executor.release()
