"""Loading on two threads: whichever fails first is what the user hears, without waiting for the other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from cpu_harness import small_spec

from firelane.backends.cpu import loader
from firelane.engine_config import ExecutorConfig
from firelane.errors import CheckpointError, CompilerError
from tests.models.dense import dense_program

PROGRAM = dense_program(small_spec())


def load(tmp_path: Path, **changes: Any) -> None:
    config = ExecutorConfig(cache_dir=tmp_path, weights="bf16", **changes)
    loader.load(PROGRAM, tmp_path, config, lambda *_: None)


def test_damaged_weights_do_not_wait_for_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(loader, "build", lambda *_: may_end.wait(20))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="too short"):
        load(tmp_path)
    assert not may_end.is_set()
    may_end.set()


def test_failed_compiler_ends_the_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any) -> Path:
        raise CompilerError("no compiler")

    def pack_for_ever(*_: Any, progress: Any, **__: Any) -> None:
        while True:
            progress("pack", 1, 2, "B")

    monkeypatch.setattr(loader.Checkpoint, "open", lambda _: MagicMock())
    monkeypatch.setattr(loader, "build", build)
    monkeypatch.setattr(loader, "load_packed", pack_for_ever)
    with pytest.raises(CompilerError, match="no compiler"):
        load(tmp_path)


@pytest.mark.parametrize(("memory", "shared"), [("private", False), ("shared", True)])
def test_memory_of_the_kv_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, shared: bool
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(loader.Checkpoint, "open", lambda _: MagicMock())
    for name in ("build", "load_packed", "ProgramLibrary", "BackgroundCheck"):
        monkeypatch.setattr(loader, name, MagicMock())
    monkeypatch.setattr(loader, "CpuExecutor", lambda **given: made.update(given))
    load(tmp_path, kv_cache_memory=memory)
    assert made["shared_pages"] is shared


GIB = 1 << 30


@pytest.mark.parametrize(
    ("pages", "replicas", "huge_pages", "spare"),
    [
        ("auto", 1, True, 3 * GIB),
        ("auto", 2, True, 0),
        ("file", 1, True, 0),
        ("huge", 1, True, 6 * GIB),
        ("huge", 2, True, 6 * GIB),
        ("huge", 1, False, 0),
    ],
)
def test_memory_for_copies_of_weights(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pages: str,
    replicas: int,
    huge_pages: bool,
    spare: int,
) -> None:
    """8 GiB are free, and KV cache and recurrent states may come to need one each."""
    monkeypatch.setattr(loader, "available_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(loader, "private_huge_pages", lambda: huge_pages)
    layout = MagicMock(page_bytes=1 << 20)
    layout.limits.num_blocks = 1 << 10
    layout.limits.num_states, layout.limits.state_bytes = 4, GIB // 4
    config = ExecutorConfig(cache_dir=tmp_path, weights_pages=pages, replicas=replicas)
    assert loader._spare(config, layout) == spare
