"""Packed weights are checked for damage while they are served."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from firelane.errors import CacheError, CheckpointError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.formats import Format
from firelane.weights.packing import check, source
from firelane.weights.packing.check import BackgroundCheck
from firelane.weights.packing.loader import load_packed
from firelane.weights.packing.packed import PackedWeights, is_intact
from firelane.weights.packing.packer import Packer
from firelane.weights.packing.plan import plan
from firelane.weights.packing.source import PackedSource
from firelane.weights.storage.files import SINGLE
from firelane.weights.storage.fingerprint import FileStamp
from firelane.weights.storage.safetensors import SafetensorsFile
from tests.models.families import make_checkpoint

NAME = "model.layers.1.mlp.up_proj.weight"
FORMS = pytest.mark.parametrize("form", [None, Format.PANEL_CODED4], ids=["plain", "coded"])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint("llama2", "bfloat16", tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that lies between the samples of a large tensor, with a small one."""
    monkeypatch.setattr(SafetensorsFile, "sample", lambda *_: b"")


def load(model: Path, cache: Path, form: Format | None = None) -> tuple[PackedWeights, BackgroundCheck]:
    program = load_program(read_config(model))
    forms = {} if form is None else {w.name: form for w in program.weights}
    checkpoint = Checkpoint.open(model)
    weights = load_packed(program, model, cache, forms=forms)
    checked = BackgroundCheck(weights, plan(program, forms), checkpoint)
    checked.wait()
    return weights, checked


def damage(path: Path, at: int, nbytes: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = np.frombuffer(file.read(nbytes), np.uint8)
        file.seek(at)
        file.write((old ^ 1).tobytes())


def change(model: Path) -> None:
    """One number of one tensor, in place and with the old time."""
    path = model / SINGLE
    before, info = path.stat(), SafetensorsFile(path).tensors[NAME]
    damage(path, (info.begin + info.end) // 2)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@FORMS
def test_sound_weights_pass(model: Path, cache: Path, form: Format | None) -> None:
    weights, checked = load(model, cache, form)
    checked.step_begins()
    assert is_intact(weights.path)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_a_checkpoint_is_let_go_when_nobody_compares_with_it_any_more(model: Path, cache: Path) -> None:
    """Mapped, what was read of it would count as memory of the process."""
    assert str(model) not in Path("/proc/self/maps").read_text()
    for _ in range(2):  # packed by this process, and before
        weights, checked = load(model, cache)
        mapped = Path("/proc/self/maps").read_text()
        assert str(weights.path) in mapped
        assert str(model) not in mapped
        checked.step_begins()


def test_what_packing_took_goes_back_once(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back = []
    monkeypatch.setattr(check, "give_back_freed", lambda: given_back.append(cache))
    load(model, cache)
    assert given_back == [cache]
    load(model, cache)  # packed before
    assert given_back == [cache]


@FORMS
@pytest.mark.parametrize("place", [0.0, 0.2, 0.5, 0.8, 0.9999])
def test_every_damage_is_found_and_packed_anew(
    model: Path, cache: Path, form: Format | None, place: float
) -> None:
    weights, _ = load(model, cache, form)
    path, whole = weights.path, weights.path.read_bytes()
    payload = len(whole) - whole[::-1].index(b"{") - 1
    weights.close()
    damage(path, int(place * (payload - 1)))
    assert not is_intact(path)
    weights, checked = load(model, cache, form)
    if path.exists():  # damage of a panel table is found when the file is opened
        checked.step_begins()
    else:
        with pytest.raises(CacheError, match="damaged; the file was removed, start again"):
            checked.step_begins()
    weights, checked = load(model, cache, form)
    checked.step_begins()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("place", [0.01, 0.6])
def test_no_step_begins_with_damaged_weights(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, place: float
) -> None:
    """However soon the first one comes, and whatever else the machine does."""
    weights, _ = load(model, cache)
    size = weights.path.stat().st_size
    weights.close()
    damage(weights.path, int(place * size) & ~63)
    weights = load_packed(load_program(read_config(model)), model, cache)
    begun = threading.Event()
    whole = PackedWeights.damage

    def late(weights: PackedWeights, stopped) -> str | None:
        assert not begun.wait(0.2)
        return whole(weights, stopped)

    monkeypatch.setattr(PackedWeights, "damage", late)
    checked = BackgroundCheck(weights, plan(load_program(read_config(model))), Checkpoint.open(model))
    with pytest.raises(CacheError, match="damaged"):
        checked.step_begins()
    begun.set()
    checked.close()


def test_a_check_that_fails_itself_holds_up_no_step(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, _ = load(model, cache)

    def fails(*_) -> None:
        raise CacheError("the drive is gone")

    monkeypatch.setattr(PackedWeights, "damage", fails)
    checked = BackgroundCheck(weights, plan(load_program(read_config(model))), Checkpoint.open(model))
    checked.step_begins()
    checked.close()


def test_a_file_that_was_packed_anew_meanwhile_is_left(model: Path, cache: Path) -> None:
    weights, _ = load(model, cache)
    program, checkpoint = load_program(read_config(model)), Checkpoint.open(model)
    damage(weights.path, 100)
    sound = weights.path.with_suffix(".new")
    shutil.copy(weights.path, sound)
    sound.replace(weights.path)
    checked = BackgroundCheck(weights, plan(program), checkpoint)
    checked.wait()
    with pytest.raises(CacheError, match="damaged"):
        checked.step_begins()
    assert weights.path.exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_check_ends_beside_a_step_that_does_not(model: Path, cache: Path, *, damaged: bool) -> None:
    weights, _ = load(model, cache)
    if damaged:
        damage(weights.path, 100)
    checked = BackgroundCheck(weights, plan(load_program(read_config(model))), Checkpoint.open(model))
    with contextlib.suppress(CacheError):  # it may be done already
        checked.step_begins()
    checked.wait()
    checked.step_ends()
    assert weights.path.exists() == (not damaged)


def test_a_check_is_stopped(model: Path, cache: Path) -> None:
    weights, _ = load(model, cache)
    assert weights.damage(lambda: True) is None
    checked = BackgroundCheck(weights, (), Checkpoint.open(model))
    checked.close()
    weights.close()
    checked.close()


@pytest.mark.usefixtures("no_samples")
def test_a_checkpoint_that_cannot_be_read_stops_nothing(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, cache)
    monkeypatch.setattr(PackedSource, "knows", lambda *_: False)
    monkeypatch.setattr("firelane.weights.storage.reader.DriveReader.read", _fails)
    load(model, cache)[1].step_begins()


def _fails(*_: object) -> None:
    raise OSError(5, "Input/output error")


# ---- another checkpoint of the same fingerprint


@pytest.mark.usefixtures("no_samples")
def test_an_update_in_place_is_found(model: Path, cache: Path) -> None:
    weights, _ = load(model, cache)
    before, path = weights.array("layers.1.gate_up").copy(), weights.path
    change(model)
    weights, checked = load(model, cache)
    assert weights.path == path
    with pytest.raises(CacheError, match="was packed from other weights than"):
        checked.step_begins()
    weights, checked = load(model, cache)
    checked.step_begins()
    assert not np.array_equal(weights.array("layers.1.gate_up"), before)


@pytest.mark.usefixtures("no_samples")
def test_another_model_is_found(model: Path, cache: Path, tmp_path: Path) -> None:
    """A fine-tune of the same name, sizes, header and time."""
    load(model, cache)
    shutil.copytree(model, tmp_path / "tune")
    change(tmp_path / "tune")
    with pytest.raises(CacheError, match="was packed from other weights than"):
        load(tmp_path / "tune", cache)[1].step_begins()


def test_a_copied_cache_is_read_once(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, cache)
    shutil.copytree(model, tmp_path / "to" / "model")
    shutil.copytree(cache, tmp_path / "to" / "cache")
    reads: list[object] = []
    add = source.ReadDigest.add
    monkeypatch.setattr(
        "firelane.weights.packing.source.ReadDigest.add", lambda *a: (reads.append(a), add(*a))
    )
    monkeypatch.setattr(Packer, "run", None)
    load(tmp_path / "to" / "model", tmp_path / "to" / "cache")[1].step_begins()
    assert reads
    reads.clear()
    load(tmp_path / "to" / "model", tmp_path / "to" / "cache")[1].step_begins()
    load(model, cache)[1].step_begins()
    assert not reads


def test_normalised_times_are_no_evidence() -> None:
    """A file system that knows no time of a change tells a time that means nothing."""
    stamp = FileStamp(inode=2, nbytes=3, modified_ns=10**9, changed_ns=10**9)
    source = PackedSource(key="k", digest="d", task_bytes=1, stamps=[{SINGLE: stamp}])
    assert not source.knows({SINGLE: stamp})
    evidence = stamp._replace(changed_ns=10**9 + 1)
    source = PackedSource(key="k", digest="d", task_bytes=1, stamps=[{SINGLE: evidence}])
    assert source.knows({SINGLE: evidence})
    for other in ({"inode": 4}, {"changed_ns": 10**9 + 2}, {"nbytes": 4}, {"modified_ns": 4}):
        assert not source.knows({SINGLE: evidence._replace(**other)})


def test_without_its_source_a_packed_file_is_packed_anew(model: Path, cache: Path) -> None:
    path = load(model, cache)[0].path
    first = path.stat().st_ino
    source = path.with_suffix(".source.json")
    source.write_text(source.read_text().replace('"digest"', '"digset"'))
    weights, checked = load(model, cache)
    checked.step_begins()
    assert weights.path == path
    assert path.stat().st_ino != first or PackedSource.read(path) is not None


def test_a_checkpoint_that_changes_while_it_is_packed(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Packer.run

    def run_and_change(self: Packer, *arguments: object, **options: object) -> object:
        sizes = run(self, *arguments, **options)  # type: ignore[arg-type]
        change(model)
        return sizes

    monkeypatch.setattr(Packer, "run", run_and_change)
    with pytest.raises(CheckpointError, match="was changed while it was packed"):
        load(model, cache)
    assert not list((cache / "weights").glob("*.weights"))
