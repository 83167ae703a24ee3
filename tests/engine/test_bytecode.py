"""Modules that lie uncompiled are compiled by a helper, which engines cannot lead to anything else."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firelane.engine.process import bytecode
from firelane.sandbox import landlock
from firelane.sandbox.system import this_machine

MACHINE = this_machine()
pytestmark = pytest.mark.skipif(
    MACHINE is None or landlock.abi(MACHINE) == 0, reason="this kernel has no Landlock"
)
ENGINE = """
import sys
from functools import partial
from pathlib import Path
from firelane import env
from firelane.engine.process import bytecode
from firelane.sandbox import confine

cache = Path(sys.argv[1])
helper = bytecode.BytecodeHelper.fork(partial(confine.confine_bytecode, cache))
confine.confine(env.read({"FIRELANE_CXX": "/nowhere"}), cache, [])
sys.pycache_prefix = str(cache / "python")  # as where nothing was compiled
import lying_here
(cache / "weights" / "planted.py").write_text("")
further = [str(cache / "weights" / "planted.py"), *sys.argv[2:]]
sources = list(bytecode._sources())
bytecode._sources = lambda: [*further, *sources]
helper.tell()
assert helper._child.ends_within(60)
helper.check()
"""


def run(tmp_path: Path, *further: str) -> tuple[Path, Path]:
    """The cache, and a module's source, after an engine's life."""
    modules, cache = tmp_path / "modules", tmp_path / "cache"
    modules.mkdir(exist_ok=True)
    source = modules / "lying_here.py"
    source.write_text("HERE = 1\n")
    os.utime(source, (1_000_000_000, 1_000_000_000))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ["PYTHONPATH"] = os.pathsep.join([str(modules), *sys.path])
    command = [sys.executable, "-c", ENGINE, str(cache), *further]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return cache, source


def compiled(monkeypatch: pytest.MonkeyPatch, cache: Path, source: Path) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", str(cache / "python"))
    return Path(importlib.util.cache_from_source(str(source)))


def test_the_helper_compiles_what_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, source = run(tmp_path)
    made = compiled(monkeypatch, cache, source)
    before = made.stat().st_mtime_ns
    assert importlib.util.decode_source(source.read_bytes()) == "HERE = 1\n"
    assert made.read_bytes()[:4] == importlib.util.MAGIC_NUMBER
    run(tmp_path)
    assert made.stat().st_mtime_ns == before  # it was current


def test_what_an_engine_has_written_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    through = str(tmp_path / "modules" / ".." / "modules" / "lying_here.py")
    cache, source = run(tmp_path, through, "/etc/hostname", "/nowhere/module.py")
    assert compiled(monkeypatch, cache, source).exists()
    names = {path.name.partition(".")[0] for path in (cache / "python").rglob("*.pyc")}
    assert not {"planted", "hostname", "module"} & names


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_is_lost_keeps_no_engine_waiting(monkeypatch: pytest.MonkeyPatch, fault) -> None:
    """The next step takes away the engine's right to change files."""
    monkeypatch.setattr(bytecode, "HEARS_WITHIN_S", 0.01)
    monkeypatch.setattr(bytecode, "_sources", lambda: ["/no/such/module.py"] * 100_000)
    helper = bytecode.BytecodeHelper.fork(lambda: None)
    os.kill(helper._child.pid, fault)
    helper.tell()
    helper._child.end()
