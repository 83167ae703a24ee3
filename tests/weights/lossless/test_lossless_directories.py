"""Whole directories: round trips, what is refused, and runs that end in the middle."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from firelane.errors import CheckpointError, FirelaneError, OutputError, UsageError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.lossless import output
from firelane.weights.lossless.manifest import MANIFEST
from firelane.weights.lossless.marks import CONFIG, STREAM_SUFFIX
from firelane.weights.lossless.output import OutputDirectory
from firelane.weights.lossless.pack import MARKER, PackResult, pack, pack_nowhere
from firelane.weights.lossless.unpack import MARKER as UNPACK_MARKER
from firelane.weights.lossless.unpack import unpack
from firelane.weights.lossless.verify import verify
from firelane.weights.storage.files import INDEX, SINGLE
from firelane.weights.storage.safetensors import SafetensorsFile
from tests.models.families import FAMILIES, make_checkpoint, random_tensors
from tests.weights.files import to_bf16, write_safetensors


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two shards of bf16 and an index, a tokenizer, and things that are not part of the model."""
    directory = make_checkpoint("llama2", "bfloat16", tmp_path / "model")
    tensors = {n: to_bf16(t) for n, t in random_tensors(FAMILIES["llama2"](), 0).items()}
    names = sorted(tensors)
    weight_map = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        write_safetensors(directory / file, {n: tensors[n] for n in names if weight_map[n] == file})
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}, indent=3))
    (directory / SINGLE).unlink()
    (directory / "pytorch_model.bin").write_bytes(b"pickle")
    (directory / "original").mkdir()
    return directory


@pytest.fixture
def packed(model: Path, tmp_path: Path) -> Path:
    pack(model, tmp_path / "packed", threads=2)
    return tmp_path / "packed"


def contents(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}


def carried(model: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(model).items() if name != "pytorch_model.bin"}


def shards(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def test_round_trip(model: Path, packed: Path, tmp_path: Path) -> None:
    assert set(contents(packed)) == set(carried(model)) | {MANIFEST}
    assert verify(packed, threads=2) == unpack(packed, tmp_path / "again", threads=2)
    assert contents(tmp_path / "again") == carried(model)
    assert all(p.stat().st_size < 0.75 * (model / p.name).stat().st_size for p in shards(packed))


def test_single_file(tmp_path: Path) -> None:
    model = make_checkpoint("llama_bias", "bfloat16", tmp_path / "model")
    done = pack(model, tmp_path / "packed", threads=1)
    assert done.original_bytes == (model / SINGLE).stat().st_size
    assert done.packed_bytes == (tmp_path / "packed" / SINGLE).stat().st_size
    assert pack_nowhere(model, threads=2).packed_bytes == done.packed_bytes
    unpack(tmp_path / "packed", tmp_path / "again", threads=1)
    assert contents(tmp_path / "again") == contents(model)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes_stay(tmp_path: Path, dtype: str) -> None:
    model = make_checkpoint("llama2", dtype, tmp_path / "model")
    pack(model, tmp_path / "packed", threads=1)
    unpack(tmp_path / "packed", tmp_path / "again", threads=1)
    assert contents(tmp_path / "again") == contents(model)


def test_checkpoint_presents_the_original(model: Path, packed: Path) -> None:
    plain, checkpoint = Checkpoint.open(model), Checkpoint.open(packed)
    checkpoint.check_against(load_program(read_config(packed)))
    assert checkpoint.names == plain.names
    for name in plain.names:
        want = plain.tensor(name)
        np.testing.assert_array_equal(checkpoint.tensor(name), want)
        half = len(want) // 2
        np.testing.assert_array_equal(checkpoint.rows(name, half, len(want)), want[half:])
        np.testing.assert_array_equal(plain.rows(name, half, len(want)), want[half:])
    with pytest.raises(IndexError):
        checkpoint.rows("model.norm.weight", 0, 10**6)
    assert Checkpoint.open(packed).fingerprint == checkpoint.fingerprint != plain.fingerprint
    os.utime(shards(packed)[0], ns=(1, 1))
    assert Checkpoint.open(packed).fingerprint != checkpoint.fingerprint


def test_again_keeps_what_is_finished(model: Path, packed: Path, tmp_path: Path) -> None:
    before = {p.name: p.stat().st_ino for p in packed.iterdir()}
    done = pack(model, packed, threads=1)
    assert done.kept == tuple(p.name for p in shards(model))
    assert done.skipped == ("original", "pytorch_model.bin")
    assert {p.name: p.stat().st_ino for p in packed.iterdir()} == before
    unpack(packed, tmp_path / "again", threads=1)
    before = {p.name: p.stat().st_ino for p in (tmp_path / "again").iterdir()}
    unpack(packed, tmp_path / "again", threads=1)
    assert {p.name: p.stat().st_ino for p in (tmp_path / "again").iterdir()} == before


def test_what_is_refused(model: Path, packed: Path, tmp_path: Path) -> None:
    refused: list[tuple[Callable[[], object], type[FirelaneError], str]] = [
        (lambda: pack(model, model, threads=1), UsageError, "is the model itself"),
        (lambda: pack(model, model / ".." / "model", threads=1), UsageError, "is the model itself"),
        (lambda: pack(packed, tmp_path / "new", threads=1), UsageError, "is packed already"),
        (lambda: pack(model, tmp_path, threads=1), OutputError, "is not empty"),
        (lambda: pack(model, model / CONFIG / "x", threads=1), OutputError, "cannot be written"),
        (lambda: unpack(packed, packed, threads=1), UsageError, "is the packed model itself"),
        (lambda: unpack(packed, tmp_path, threads=1), OutputError, "is not empty"),
        (lambda: unpack(model, tmp_path / "new", threads=1), CheckpointError, "not a packed model"),
        (lambda: verify(model, threads=1), CheckpointError, "not a packed model"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()
    assert not (tmp_path / "new").exists()


def test_finished_directories_are_not_written_to(model: Path, packed: Path, tmp_path: Path) -> None:
    unpack(packed, tmp_path / "again", threads=1)
    (tmp_path / "again" / "tokenizer.json").write_text("mine")
    with pytest.raises(OutputError, match=r"tokenizer\.json: was changed"):
        unpack(packed, tmp_path / "again", threads=1)
    assert (tmp_path / "again" / "tokenizer.json").read_text() == "mine"
    other = random_tensors(FAMILIES["llama2"](), 1)
    first = shards(model)[0]
    write_safetensors(first, {n: to_bf16(other[n]) for n in SafetensorsFile(first).tensors})
    with pytest.raises(OutputError, match="is of another model"):
        pack(model, packed, threads=1)
    verify(packed, threads=1)
    assert not list(packed.glob("*unfinished"))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def edit_json(path: Path, **changes: object) -> None:
    content = json.loads(path.read_bytes()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


MIXTURES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "plain shard": (
        lambda p, m: shutil.copy(shards(m)[1], shards(p)[1]),
        "is not packed, but config.json says so",
    ),
    "plain config": (
        lambda p, m: shutil.copy(m / CONFIG, p / CONFIG),
        "is packed, but config.json does not say",
    ),
    "newer version": (
        lambda p, _: edit_json(p / CONFIG, firelane_lossless={"version": 2}),
        "version '2'.*update",
    ),
    "version true": (
        lambda p, _: edit_json(p / CONFIG, firelane_lossless={"version": True}),
        "version 'True'",
    ),
    "no version": (lambda p, _: edit_json(p / CONFIG, firelane_lossless=3), "version ''"),
    "config is no JSON": (lambda p, _: (p / CONFIG).write_text("{"), "not valid JSON"),
    "missing shard": (lambda p, _: shards(p)[0].unlink(), "is missing"),
    "index of another model": (
        lambda p, _: (p / INDEX).write_text('{"weight_map": {"x": "model-00001-of-00002.safetensors"}}'),
        "tensor x is missing",
    ),
    "the same shard twice": (lambda p, _: shutil.copy(shards(p)[0], shards(p)[1]), "is also in"),
}
DAMAGES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "manifest missing": (lambda p, _: (p / MANIFEST).unlink(), f"{MANIFEST}: cannot be read"),
    "manifest is no JSON": (lambda p, _: (p / MANIFEST).write_text("[" * 100_000), "not valid JSON"),
    "manifest is no object": (lambda p, _: (p / MANIFEST).write_text("[]"), "not a JSON object"),
    "manifest of a newer version": (lambda p, _: edit_json(p / MANIFEST, version=2), "version '2'"),
    "manifest without files": (lambda p, _: edit_json(p / MANIFEST, files=None), "is not a manifest"),
    "manifest leaves the directory": (
        lambda p, _: edit_json(p / MANIFEST, files={"../x": {"bytes": 1, "xxh3_128": "0" * 32}}),
        "entry '../x' is not valid",
    ),
    "another config": (
        lambda p, _: edit_json(p / CONFIG, hidden_size=4),
        "is not the config that was packed",
    ),
    "tokenizer changed": (lambda p, _: damage(p / "tokenizer.json"), "tokenizer.json: is not the file"),
    "tokenizer missing": (lambda p, _: (p / "tokenizer.json").unlink(), "tokenizer.json: cannot be read"),
    "weights changed": (lambda p, _: damage(shards(p)[1]), "download or pack it again"),
    "stray weights": (
        lambda p, m: shutil.copy(shards(m)[0], p / "x.safetensors"),
        "not part of the packed model",
    ),
}


@pytest.mark.parametrize("name", [*MIXTURES, *DAMAGES])
def test_damaged_directories(model: Path, packed: Path, tmp_path: Path, name: str) -> None:
    change, message = (MIXTURES | DAMAGES)[name]
    change(packed, model)
    calls = [lambda: verify(packed, threads=2), lambda: unpack(packed, tmp_path / "again", threads=2)]
    calls += [lambda: Checkpoint.open(packed)] if name in MIXTURES else []
    for call in calls:
        with pytest.raises(CheckpointError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "again" / CONFIG).exists()


def test_packed_shard_in_a_plain_directory(model: Path, packed: Path) -> None:
    shutil.copy(shards(packed)[0], shards(model)[0])
    with pytest.raises(CheckpointError, match=r"is packed, but config\.json does not say so"):
        Checkpoint.open(model)


def test_stream_in_a_plain_file(model: Path) -> None:
    write_safetensors(shards(model)[0], {"w" + STREAM_SUFFIX: np.zeros(4, np.float32)})
    with pytest.raises(CheckpointError, match="but no packed file"):
        Checkpoint.open(model)


def assert_nothing_looks_whole(out: Path) -> None:
    assert not (out / CONFIG).exists()
    assert not list(out.glob("*.tmp"))
    with pytest.raises(FirelaneError):
        verify(out, threads=1)


def limited(run: Callable[[], object], nbytes: int) -> None:
    """`run` where no file may be larger than `nbytes`, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        with pytest.raises(OutputError, match=r"no room left on this disk.*it goes on"):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_then_again(model: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "packed", tmp_path / "again"
    sizes = pack_nowhere(model, threads=1).controls
    limited(lambda: pack(model, out, threads=2), min(c.original_bytes for c in sizes.values()) // 2)
    assert_nothing_looks_whole(out)
    pack(model, out, threads=2)
    limited(lambda: unpack(out, again, threads=2), 20_000)
    assert_nothing_looks_whole(again)
    unpack(out, again, threads=2)
    assert contents(again) == carried(model)


KILL = """
import os, signal, sys
from pathlib import Path
from firelane.weights.lossless.{command} import {command}
seen = 0
def progress(stage, done, total, unit):
    global seen
    seen += 1
    if seen == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
{command}(Path(sys.argv[1]), Path(sys.argv[2]), threads=2, progress=progress)
"""


def kill(command: str, source: Path, out: Path, after: int) -> int:
    arguments = [sys.executable, "-c", KILL.format(command=command), source, out, str(after)]
    return subprocess.run(arguments).returncode


@pytest.mark.parametrize("after", [1, 12, 20])
def test_killed_then_again(model: Path, tmp_path: Path, after: int) -> None:
    out, again = tmp_path / "packed", tmp_path / "again"
    assert kill("pack", model, out, after) == -signal.SIGKILL
    assert not (out / CONFIG).exists()
    assert (out / MARKER).exists()
    finished = tuple(p.name for p in shards(out))
    assert pack(model, out, threads=2).kept == finished
    assert (len(finished) == 0) == (after < 15)
    assert kill("unpack", out, again, after) == -signal.SIGKILL
    assert not (again / CONFIG).exists()
    assert (again / UNPACK_MARKER).exists()
    unpack(out, again, threads=2)
    assert contents(again) == carried(model)
    assert verify(out, threads=1)


def test_unfinished_file_under_its_final_name_is_packed_again(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    assert kill("pack", model, out, 20) == -signal.SIGKILL
    damage(shards(out)[0])
    assert pack(model, out, threads=1).kept == ()
    verify(out, threads=1)


def test_unfinished_work_of_another_model(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    assert kill("pack", model, out, 1) == -signal.SIGKILL
    other = make_checkpoint("llama_bias", "bfloat16", tmp_path / "other")
    with pytest.raises(OutputError, match="unfinished work on another model"):
        pack(other, out, threads=1)


def test_two_writers(tmp_path: Path) -> None:
    def directory() -> OutputDirectory:
        return OutputDirectory(tmp_path / "out", marker="m", task={}, is_whole=lambda: False)

    with directory(), pytest.raises(OutputError, match="another process is writing it"), directory():
        pass
    assert list((tmp_path / "out").iterdir()) == []


def test_large_files_are_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that were sent to the drive early are there, and what lies behind the end is not."""
    monkeypatch.setattr(output, "FLUSH_BYTES", 1000)
    monkeypatch.setattr(output, "BUFFERS_AT_ONCE", 3)
    pieces = [os.urandom(n) for n in (5, 0, 4000, 1, 900, 700, 1, 3)]
    with (
        OutputDirectory(tmp_path / "out", marker="m", task={}, is_whole=lambda: False) as directory,
        directory.writing("file") as file,
    ):
        file.reserve(100)
        file.write(b"head")
        file.put(4, [*pieces, bytes(50)])
        file.finish(4 + sum(map(len, pieces)))
    assert (tmp_path / "out" / "file").read_bytes() == b"head" + b"".join(pieces)


def test_progress_ends_at_the_total(model: Path, tmp_path: Path) -> None:
    calls: list[tuple[float, float]] = []

    def progress(stage: str, done: float, total: float, unit: str, /) -> None:
        del stage, unit
        calls.append((done, total))

    def run(work: Callable[[], int | PackResult]) -> None:
        calls.clear()
        work()
        assert calls[-1][0] == calls[-1][1]
        assert all(a[0] <= b[0] for a, b in pairwise(calls))

    out = tmp_path / "packed"
    run(lambda: pack(model, out, threads=2, progress=progress))
    run(lambda: pack(model, out, threads=2, progress=progress))
    run(lambda: verify(out, threads=2, progress=progress))
    run(lambda: unpack(out, tmp_path / "again", threads=2, progress=progress))
