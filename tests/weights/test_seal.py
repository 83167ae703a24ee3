"""Seals of packed files: they serve before they are sealed, and count as packed only then."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from queue import Empty

import numpy as np
import pytest

from firelane.errors import CacheError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.packing.check import BackgroundCheck
from firelane.weights.packing.loader import load_packed
from firelane.weights.packing.packed import PackedWeights
from firelane.weights.packing.plan import plan
from firelane.weights.packing.source import PackedSource
from tests.models.families import make_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint("llama_bias", "bfloat16", tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def load(model: Path, cache: Path, *, seals_later: bool = True) -> tuple[PackedWeights, bool]:
    """And whether it was packed."""
    stages: list[str] = []

    def note(stage: str, done: float, total: float, unit: str, /) -> None:  # noqa: ARG001
        stages.append(stage)

    program = load_program(read_config(model))
    weights = load_packed(program, model, cache, progress=note, seals_later=seals_later)
    return weights, bool(stages)


class Drive:
    """A drive that takes its time: until `goes_on`, and fails then, if it is to."""

    def __init__(self) -> None:
        self.goes_on, self.fails = threading.Event(), False

    def fsync(self, _: int) -> None:
        assert self.goes_on.wait(60)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Generator[Drive]:
    found = Drive()
    monkeypatch.setattr(os, "fsync", found.fsync)
    yield found
    found.goes_on.set()


def test_weights_serve_before_the_drive_has_them(model: Path, cache: Path, drive: Drive) -> None:
    weights, _ = load(model, cache)
    norm = weights.array("norm").copy()
    assert weights.path.exists()
    assert PackedSource.read(weights.path) is None
    drive.goes_on.set()
    weights.sealed()
    assert PackedSource.read(weights.path) is not None
    again, packed = load(model, cache)
    assert not packed
    assert (again.array("norm") == norm).all()


def _load_and_tell(model: Path, cache: Path, results: multiprocessing.Queue[bool]) -> None:
    results.put(load(model, cache)[1])


def test_others_wait_for_the_seal_and_pack_nothing(model: Path, cache: Path, drive: Drive) -> None:
    weights, _ = load(model, cache)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=_load_and_tell, args=(model, cache, results))
    other.start()
    with pytest.raises(Empty):  # it waits, or is not that far yet
        results.get(timeout=0.5)
    drive.goes_on.set()
    assert results.get(timeout=120) is False
    other.join()
    weights.sealed()


KILLED = """
import os, sys, threading
from pathlib import Path
os.fsync = lambda _: threading.Event().wait()
from tests.weights.test_seal import load
load(Path(sys.argv[1]), Path(sys.argv[2]))
os._exit(9)
"""


def test_what_a_killed_process_had_not_sealed_is_packed_again(model: Path, cache: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(model), str(cache)], check=False)
    assert done.returncode == 9
    (path,) = (cache / "weights").glob("*.weights")
    path.write_bytes(bytes(path.stat().st_size))  # as after a power loss
    weights, packed = load(model, cache, seals_later=False)
    assert packed
    assert np.isfinite(weights.array("norm")).all()
    assert weights.damage() is None


def test_an_old_seal_says_nothing_of_a_new_file(model: Path, cache: Path, drive: Drive) -> None:
    """The file was removed, as one that was found damaged is; its seal stayed."""
    drive.goes_on.set()
    path = load(model, cache, seals_later=False)[0].path
    path.unlink()
    seen: list[bool] = []
    replace = Path.replace

    def record(self: Path, target: Path) -> Path:
        if target == path:
            seen.append(PackedSource.read(path) is None)
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", record)
        load(model, cache, seals_later=False)
    assert seen == [True]


def test_a_drive_that_fails_later_ends_the_serving_and_leaves_nothing(
    model: Path, cache: Path, drive: Drive
) -> None:
    drive.fails = True
    weights, _ = load(model, cache)
    program, checkpoint = load_program(read_config(model)), Checkpoint.open(model)
    check = BackgroundCheck(weights, plan(program), checkpoint)
    check.step_begins()
    drive.goes_on.set()
    check.wait()
    with pytest.raises(CacheError, match="cannot be written: Input/output error") as caught:
        check.step_begins()
    assert "\n" not in str(caught.value)
    assert not list((cache / "weights").glob("*.weights"))
    check.close()


def test_a_process_that_ends_early_seals_what_it_has_packed(model: Path, cache: Path) -> None:
    program = "import sys; from pathlib import Path; from tests.weights.test_seal import load; "
    program += "import os, time; sync = os.fsync; os.fsync = lambda fd: (time.sleep(0.3), sync(fd)); "
    program += "load(Path(sys.argv[1]), Path(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", program, str(model), str(cache)], check=True)
    assert not load(model, cache)[1]
