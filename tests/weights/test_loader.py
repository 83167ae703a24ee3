"""Packing into the cache and mapping it again, and every way in which that goes wrong."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane.errors import CacheError, CheckpointError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.program.recipes import widened
from firelane.program.reference import materialise
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.coded_native import coded_library
from firelane.weights.formats.formats import Format, pack, unpack
from firelane.weights.packing import loader, packer
from firelane.weights.packing.loader import load_packed
from firelane.weights.packing.packed import PackedWeights
from firelane.weights.packing.packer import Packer
from firelane.weights.packing.plan import plan
from firelane.weights.storage.files import SINGLE
from tests.models.families import FAMILIES, make_checkpoint, random_tensors
from tests.weights.files import to_bf16, write_safetensors


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint("llama_bias", "bfloat16", tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def load(model: Path, cache: Path, form: Format | None = None, *, threads: int = 2) -> PackedWeights:
    """With `form`, in that one all matrices that can."""
    program = load_program(read_config(model))
    forms = {} if form is None else {w.name: form for w in program.weights}
    return load_packed(program, model, cache, forms=forms, threads=threads)


def files(cache: Path, suffix: str) -> list[Path]:
    return sorted((cache / "weights").glob(f"*{suffix}"))


FORMS = pytest.mark.parametrize(
    "form", [None, Format.PANEL_CODED4, Format.PANEL_CODED3], ids=lambda f: f.value if f else "plain"
)


@pytest.mark.parametrize(
    ("dtype", "form"),
    [
        ("float32", None),
        ("float16", None),
        ("bfloat16", None),
        ("bfloat16", Format.PANEL_CODED4),
        ("bfloat16", Format.PANEL_CODED3),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_comes_back(tmp_path: Path, family: str, dtype: str, form: Format | None) -> None:
    model = make_checkpoint(family, dtype, tmp_path / "model")
    program = load_program(read_config(model))
    packed, checkpoint = load(model, tmp_path, form), Checkpoint.open(model)
    for p in map(packed.placed, (w.name for w in program.weights)):
        w = p.weight
        values = unpack(packed.array(w.name), p.format, w.shape, gated=p.gated)
        want = materialise(w, checkpoint.tensor)
        assert values.dtype == (np.uint16 if p.format.plain is Format.PANEL_BF16 else np.float32)
        np.testing.assert_array_equal(widened(values), want)


@pytest.mark.parametrize("task_bytes", [1, 1 << 30])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parallel_packing_gives_the_plain_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_bytes: int, dtype: str
) -> None:
    """Padding included, whether a task is one panel or a whole matrix."""
    monkeypatch.setattr("firelane.weights.packing.packer.TASK_BYTES", task_bytes)
    model = make_checkpoint("llama_bias", dtype, tmp_path / "model")
    program, checkpoint = load_program(read_config(model)), Checkpoint.open(model)
    packed = load_packed(program, model, tmp_path, threads=4)
    for p in plan(program):
        values = np.concatenate([checkpoint.tensor(name) for name in p.weight.tensors])
        want = pack(values if p.format is Format.PANEL_BF16 else widened(values), p.format, gated=p.gated)
        np.testing.assert_array_equal(packed.array(p.weight.name), want)


@FORMS
def test_addresses_are_aligned_and_do_not_overlap(model: Path, cache: Path, form: Format | None) -> None:
    program, end, used = load_program(read_config(model)), 0, 0
    packed = load(model, cache, form)
    placed = [packed.placed(w.name) for w in program.weights]
    for p in placed:
        at = packed.address(p.weight.name)
        assert at % (4096 if p.is_matrix else 64) == 0
        if p.format.is_coded:
            table = packed.panel_table(p.weight.name)
            assert end <= table.ctypes.data <= at - table.nbytes
            assert table.ctypes.data % 8 == 0
            nbytes = int(table[-1])
            used += table.nbytes
        else:
            assert packed.array(p.weight.name).ctypes.data == at >= end
            with pytest.raises(KeyError):
                packed.panel_table(p.weight.name)
            nbytes = p.plain_bytes
        end = at + nbytes
        used += nbytes
    assert any(p.format.is_coded for p in placed) == (form is not None)
    assert packed.nbytes == used
    if form is not None:
        assert packed.nbytes < load(model, cache).nbytes


@FORMS
def test_the_file_does_not_depend_on_the_threads(
    model: Path, cache: Path, form: Format | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[bytes] = set()
    for threads, task_bytes in [(1, 1 << 30), (1, 1), (4, 1), (4, 8000)]:
        monkeypatch.setattr("firelane.weights.packing.packer.TASK_BYTES", task_bytes)
        weights = load(model, cache, form, threads=threads)
        seen.add(weights.path.read_bytes())
        weights.path.unlink()
    assert len(seen) == 1


def test_all_is_written_into_pages_that_were_prepared(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    write = packer._write

    def record(fd: int, array: NDArray[Any], offset: int) -> None:
        written.append((offset, array.nbytes))
        write(fd, array, offset)

    monkeypatch.setattr(packer, "_write", record)
    monkeypatch.setattr(packer.PageCacheFile, "prepare", lambda _, *given: prepared.append(given))
    load(model, cache)
    assert sorted(prepared) == sorted(written)
    assert prepared


def test_weights_in_copied_pages_are_the_same(model: Path, cache: Path) -> None:
    weights = load(model, cache)
    address, before = weights.address("norm"), weights.file.array().copy()
    weights.file.copy(0, weights.file.nbytes)
    assert (weights.file.array() == before).all()
    assert weights.address("norm") == address
    assert weights.damage() is None
    weights.close()


@FORMS
def test_without_a_compiler_the_file_is_the_same(
    model: Path, cache: Path, form: Format | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert coded_library() is not None
    weights = load(model, cache, form)
    compiled = weights.path.read_bytes()
    weights.path.unlink()
    monkeypatch.setattr(loader, "coded_library", lambda: None)
    assert load(model, cache, form).path.read_bytes() == compiled


def test_a_hole_behind_coded_formats_is_as_long_as_damage_can_reach(model: Path, cache: Path) -> None:
    """A kernel that takes every weight of the last panel for an escape stays inside the mapping."""
    weights = load(model, cache, Format.PANEL_CODED4)
    names = [w.name for w in load_program(read_config(model)).weights]
    start = weights.panel_table(names[0]).ctypes.data  # the file's first bytes
    for name in names:
        p = weights.placed(name)
        if p.format.is_coded:
            last_panel = weights.address(name) - start + int(weights.panel_table(name)[-2])
            assert last_panel + p.panel_bounds[1] + 128 <= weights.path.stat().st_size


def test_second_load_maps_the_file(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(model, cache)
    monkeypatch.setattr(Packer, "run", None)
    second = load(model, cache)
    assert second.path == first.path
    np.testing.assert_array_equal(first.array("norm"), second.array("norm"))


def test_a_cache_that_cannot_be_written_still_serves_what_it_holds(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, cache)
    monkeypatch.setattr(loader, "locked", None)
    load(model, cache)


def test_changed_checkpoint_is_packed_anew(model: Path, cache: Path) -> None:
    first = load(model, cache).array("norm")
    make_checkpoint("llama_bias", "bfloat16", model, seed=1)
    second = load(model, cache).array("norm")
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("damage", ["truncated", "longer", "footer", "empty", "other manifest"])
def test_damaged_file_is_packed_anew(model: Path, cache: Path, damage: str) -> None:
    weights = load(model, cache)
    want = weights.array("layers.0.qkv").copy()
    data = bytearray(weights.path.read_bytes())
    if damage == "footer":
        data[-1] ^= 1
    elif damage == "other manifest":
        data = data.replace(b'"format_version": ', b'"format_version":9')
    data = {"truncated": data[:-100], "longer": data + b"x", "empty": bytearray()}.get(damage, data)
    weights.path.unlink()
    weights.path.write_bytes(data)
    np.testing.assert_array_equal(load(model, cache).array("layers.0.qkv"), want)
    assert len(files(cache, ".weights")) == 1


@pytest.mark.parametrize("at", [0, 1, 5, -1])
@pytest.mark.parametrize("value", [0, 1, 64, 1 << 20, (1 << 64) - 64])
def test_damaged_panel_table_is_packed_anew(model: Path, cache: Path, at: int, value: int) -> None:
    weights = load(model, cache, Format.PANEL_CODED3)
    want = weights.path.read_bytes()
    table = np.frombuffer(want, np.uint64, count=10).copy()  # of the embedding: 261 rows
    assert table.tolist() == weights.panel_table("embed").tolist()
    table[at] = value
    if value or at:
        weights.path.unlink()
        weights.path.write_bytes(table.tobytes() + want[table.nbytes :])
    assert load(model, cache, Format.PANEL_CODED3).path.read_bytes() == want


@pytest.mark.parametrize(
    "change",
    [
        lambda m: [m],
        lambda m: m["sizes"],
        lambda m: {**m, "sizes": None},
        lambda m: {**m, "sizes": m["sizes"][1:]},
        lambda m: {**m, "sizes": [*m["sizes"], 64]},
        lambda m: {**m, "sizes": [float(n) for n in m["sizes"]]},
        lambda m: {**m, "sizes": [str(n) for n in m["sizes"]]},
        lambda m: {**m, "sizes": [n + 64 for n in m["sizes"]]},
        lambda m: {**m, "sizes": [-n for n in m["sizes"]]},
        lambda m: {**m, "sizes": [1 << 80 for _ in m["sizes"]]},
        lambda m: {**m, "fingerprint": "0" * 64},
        lambda m: {**m, "more": 1},
        lambda _: b"[" * 100_000,
        lambda _: b"\xff",
        lambda _: b"9" * 5000,
    ],
)
def test_lying_manifest_is_packed_anew(model: Path, cache: Path, change: Any) -> None:
    """With a hash that is right all the same."""
    path = load(model, cache, Format.PANEL_CODED4).path
    want = path.read_bytes()
    length = int.from_bytes(want[-48:-40], "little")
    text = change(json.loads(want[-64 - length : -64]))
    text = text if isinstance(text, bytes) else json.dumps(text, sort_keys=True).encode()
    trailer = want[-64:-48] + len(text).to_bytes(16, "little") + hashlib.sha256(text).digest()
    path.unlink()
    path.write_bytes(want[: -64 - length] + text + trailer)
    assert load(model, cache, Format.PANEL_CODED4).path.read_bytes() == want


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_bad_weight_is_named(tmp_path: Path, cache: Path, bad: float, dtype: str, name: str) -> None:
    model = make_checkpoint("llama2", dtype, tmp_path / "model")
    tensors = random_tensors(FAMILIES["llama2"](), 0)
    if dtype == "bfloat16":
        tensors = {n: to_bf16(t) for n, t in tensors.items()}
        tensors[name].reshape(-1)[-1] = {"nan": 0x7FC0, "inf": 0x7F80, "-inf": 0xFF80}[str(bad)]
    else:
        tensors[name].reshape(-1)[-1] = bad
    write_safetensors(model / SINGLE, tensors, dtype)
    with pytest.raises(CheckpointError, match=f"{name} holds NaN or infinite"):
        load(model, cache)
    assert files(cache, ".weights") == files(cache, ".tmp") == []


def test_disk_full_before_packing(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CacheError, match=r"no room .* FIRELANE_CACHE_DIR"):
        load(model, cache)
    assert files(cache, ".weights") == files(cache, ".tmp") == []


def test_disk_full_while_packing(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real write error in the middle: the kernel refuses to let the file grow."""
    monkeypatch.setattr(loader, "_reserve", lambda _fd, _size: None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(CacheError, match="FIRELANE_CACHE_DIR"):
            load(model, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(cache, ".weights") == files(cache, ".tmp") == []
    load(model, cache)


def test_cache_directory_is_a_file(model: Path, cache: Path) -> None:
    cache.write_text("not a directory")
    with pytest.raises(CacheError, match=r"cannot be written.* FIRELANE_CACHE_DIR") as caught:
        load(model, cache)
    assert "\n" not in str(caught.value)


def test_leavings_of_a_killed_process_are_removed(model: Path, cache: Path) -> None:
    path = load(model, cache).path
    path.unlink()
    stale = path.with_name(f"{path.name}.abc.tmp")
    stale.write_bytes(b"half")
    load(model, cache)
    assert not stale.exists()


def test_bytes_and_name_are_on_the_disk_before_the_seal(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int, list[Path]]] = []

    def fsync(fd: int) -> None:
        synced.append((os.fstat(fd).st_ino, len(files(cache, ".weights")), files(cache, ".source.json")))

    monkeypatch.setattr(os, "fsync", fsync)
    path = load(model, cache).path
    assert synced == [(path.stat().st_ino, 1, []), (path.parent.stat().st_ino, 1, [])]
    assert len(files(cache, ".source.json")) == 1


def test_a_disk_that_fails_leaves_nothing(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CacheError, match="cannot be written"):
        load(model, cache)
    assert files(cache, ".weights") == files(cache, ".tmp") == []


def _load_in_child(model: Path, cache: Path, packed: multiprocessing.Queue) -> None:
    """Reports whether this process packed."""
    stages: list[str] = []
    program: Program = load_program(read_config(model))
    weights = load_packed(program, model, cache, progress=lambda stage, *_: stages.append(stage))
    packed.put((bool(stages), float(weights.array("norm").sum())))


def test_processes_that_start_together_pack_once(model: Path, cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=_load_in_child, args=(model, cache, results)) for _ in range(3)]
    for child in children:
        child.start()
    answers = [results.get(timeout=600) for _ in children]
    for child in children:
        child.join()
    assert sorted(packed for packed, _ in answers) == [False, False, True]
    assert len({total for _, total in answers}) == 1
    assert files(cache, ".tmp") == []


def test_progress(model: Path, cache: Path) -> None:
    seen: list[tuple[str, float, float, str]] = []
    program = load_program(read_config(model))
    load_packed(program, model, cache, progress=lambda *args: seen.append(args), threads=1)
    assert {(stage, unit) for stage, _, _, unit in seen} == {("pack", "B")}
    done = [d for _, d, _, _ in seen]
    assert done == sorted(done)
    assert done[-1] <= seen[-1][2]


def test_close(model: Path, cache: Path) -> None:
    weights = load(model, cache)
    kept = weights.array("norm")
    weights.close()
    weights.close()
    assert np.isfinite(kept).all()
    with pytest.raises(CheckpointError, match="closed"):
        weights.address("norm")
