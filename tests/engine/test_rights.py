"""An engine gives up its rights step by step, as its config and its model allow."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from firelane.child_process import Replacements
from firelane.engine.process import rights
from firelane.engine_config import STORE_INDEX, EngineConfig
from firelane.errors import CacheError
from firelane.weights.gguf.index import VERSION, File, Index, write_index
from firelane.weights.storage.files import GGUF_INDEX
from firelane.weights.storage.fingerprint import FileStamp


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note the rights that are given up, in place of giving them up."""
    found: list[Any] = []
    helper = type("Helper", (), {"connected": None, "check": lambda: None})
    monkeypatch.setattr(rights, "this_machine", lambda: "here")
    monkeypatch.setattr(rights, "fork_service", lambda *_: 99)
    monkeypatch.setattr(rights.env, "set_compiler", lambda _: None)
    monkeypatch.setattr(rights, "confine", lambda *_, network: found.append(("files", network)))
    monkeypatch.setattr(rights, "serve_only", lambda *, network: found.append(("calls", network)))
    monkeypatch.setattr(rights, "forbid_changes", lambda: found.append("changes"))
    monkeypatch.setattr(rights, "forbid_network", lambda: found.append("network"))
    monkeypatch.setattr(rights, "has_bytecode", lambda: True)
    monkeypatch.setattr(rights, "fork_trials", lambda _: helper)
    return found


def config(tmp_path: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(**{"model_dir": tmp_path, "cache_dir": tmp_path, "backend": "null", **changes})


def test_files_and_network_at_once_and_programs_and_changes_later(tmp_path: Path, done: list[Any]) -> None:
    given = rights.rights_of(config(tmp_path))
    assert done == [("files", False)]
    given.loaded()
    assert done == [("files", False), ("calls", False)]
    given.serves(lambda: None)
    for thread in [one for one in threading.enumerate() if one.name == "sandbox"]:
        thread.join()
    assert done[2:] == ["changes"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_in_a_store_keeps_the_network_until_it_is_read(tmp_path, done, fails: bool) -> None:
    """Caches may be written for as long."""
    (tmp_path / STORE_INDEX).touch()
    read = threading.Event()

    def settle() -> None:
        assert read.wait(60)
        if fails:
            raise CacheError("damaged")

    given = rights.rights_of(config(tmp_path))
    given.loaded()
    given.serves(settle)
    assert done == [("files", True), ("calls", True)]
    (thread,) = [one for one in threading.enumerate() if one.name == "sandbox"]
    read.set()
    thread.join()
    assert done[2:] == ["changes", "network"]


@pytest.mark.parametrize("changes", [{"sandbox": False}, {"backend": "cuda"}])
def test_engines_that_keep_all(tmp_path, done, changes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        given = rights.rights_of(config(tmp_path, **changes))
    given.loaded()
    given.serves(lambda: None)
    assert done == []
    assert ("engines on a GPU have none" in caplog.text) == ("backend" in changes)


@pytest.mark.parametrize("sandbox", [True, False])
def test_agents_of_nixl_are_there_before_the_sandbox_is_closed(tmp_path, done, monkeypatch, sandbox) -> None:
    class Agents:
        def __init__(self, *, confined: bool, replaced: Replacements) -> None:
            assert replaced.counts == {}
            done.append(confined)

        def check(self) -> None:
            done.append("checked")

    monkeypatch.setattr(rights, "HelperAgents", Agents)
    given = rights.rights_of(config(tmp_path, kv_transport="nixl", sandbox=sandbox))
    assert done == ([True, ("files", False)] if sandbox else [False])
    assert isinstance(given.agents, Agents)
    given.check_helpers()
    assert done[-1] == "checked"
    assert rights.rights_of(config(tmp_path)).agents is None


def test_the_files_of_a_gguf_index_are_the_models(tmp_path: Path) -> None:
    """An index counts where this machine has made it: in the cache."""
    made, other = tmp_path / "cache" / "gguf" / "toy", tmp_path / "downloaded"
    stamp = FileStamp(1, 2, 3, 4)
    file = File(path="/shelf/toy.gguf", stamp=stamp, header_bytes=1, tensors={})
    for directory in (made, other):
        directory.mkdir(parents=True)
        write_index(directory, Index(version=VERSION, files=[file]))
    cache = tmp_path / "cache"
    assert rights._files_of_gguf(made, cache) == [Path("/shelf/toy.gguf")]
    assert rights._files_of_gguf(other, cache) == []
    assert rights._files_of_gguf(cache, cache) == []
    assert GGUF_INDEX == rights.GGUF_INDEX


def test_what_closes_the_sandbox_has_started_no_threads() -> None:
    code = "import sys, firelane.engine.process.rights; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_index_of_a_store_goes_by_the_name_that_readers_know() -> None:
    name = "firelane.weights.storage.remote"
    if importlib.util.find_spec(name) is None:
        pytest.skip("no reader of stores is installed")
    assert importlib.import_module(name).NAME == STORE_INDEX
