"""Models in object stores: what is fetched, what stays there, and what is read from where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from firelane.errors import CheckpointError, ModelNotFoundError, StoreError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.sources import remote
from firelane.sources.cache import NodeCache
from firelane.sources.resolve import resolve
from firelane.stores.address import parse
from firelane.stores.client import ObjectStore
from firelane.stores.objects import StoredObject
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.formats import Format
from firelane.weights.lossless.pack import pack
from firelane.weights.packing.loader import load_packed
from firelane.weights.packing.packed import PackedWeights
from firelane.weights.packing.source import PackedSource
from firelane.weights.storage.files import INDEX, SINGLE
from firelane.weights.storage.reader import ReadBuffer
from firelane.weights.storage.remote import NAME, RemoteBytes, read_index
from tests.models.families import make_checkpoint
from tests.weights.files import write_safetensors

URL = "s3://bucket/model"


@pytest.fixture
def model(buckets: Path) -> Path:
    return make_checkpoint("llama_bias", "bfloat16", buckets / "bucket" / "model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of objects of which parts are read."""
    names: list[str] = []
    read = ObjectStore.read

    def watch(self: ObjectStore, wanted: StoredObject, begin: int, end: int) -> memoryview:
        names.append(wanted.name)
        return read(self, wanted, begin, end)

    monkeypatch.setattr(ObjectStore, "read", watch)
    return names


def packed(directory: Path, cache: Path) -> PackedWeights:
    program = load_program(read_config(directory))
    forms = {w.name: Format.PANEL_CODED4 for w in program.weights}
    return load_packed(program, directory, cache, forms=forms)


def split(model: Path) -> None:
    """Into two files and an index."""
    tensors = {name: Checkpoint.open(model).tensor(name) for name in Checkpoint.open(model).names}
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, of_file in parts.items():
        write_safetensors(model / file, {name: tensors[name] for name in of_file})
    weight_map = {name: file for file, of_file in parts.items() for name in of_file}
    (model / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (model / SINGLE).unlink()


@pytest.mark.parametrize("form", ["one file", "split", "lossless"])
def test_weights_are_those_of_the_model(model: Path, cache: Path, form: str) -> None:
    """Tensors, parts of them, and what is packed of them; no file of weights is kept."""
    if form == "split":
        split(model)
    if form == "lossless":
        pack(model, model.with_name("packed"), threads=1)
        shutil.rmtree(model)
        model.with_name("packed").rename(model)
    directory = resolve(URL, cache_dir=cache)
    assert not list(directory.glob("*.safetensors"))
    assert (directory / "config.json").read_bytes() == (model / "config.json").read_bytes()
    stored, here = Checkpoint.open(directory), Checkpoint.open(model)
    assert stored.names == here.names
    buffer = ReadBuffer(1 << 20)
    for name in here.names:
        whole = here.tensor(name)
        np.testing.assert_array_equal(stored.tensor(name), whole)
        first, last = len(whole) // 3, len(whole) // 2
        np.testing.assert_array_equal(stored.rows(name, first, last), whole[first:last])
        np.testing.assert_array_equal(stored.rows(name, first, last, buffer), whole[first:last])
    ours, theirs = packed(directory, cache), packed(model, cache)
    assert ours.path != theirs.path
    for weight in load_program(read_config(model)).weights:
        np.testing.assert_array_equal(ours.array(weight.name), theirs.array(weight.name))


def test_a_second_start_reads_no_weights(model: Path, cache: Path, reads: list[str]) -> None:
    del model
    first = packed(resolve(URL, cache_dir=cache), cache)
    source = PackedSource.read(first.path)
    assert source is not None
    assert source.knows(Checkpoint.open(resolve(URL, cache_dir=cache)).stamps)
    reads.clear()
    directory = resolve(URL, cache_dir=cache)
    assert packed(directory, cache).path == first.path
    assert Checkpoint.open(directory).is_unchanged()
    assert reads == []


def test_a_pulled_model_is_the_same_one(model: Path, cache: Path, reads: list[str]) -> None:
    """Its packed weights serve both, and it needs the store no more."""
    streamed = Checkpoint.open(resolve(URL, cache_dir=cache)).fingerprint
    directory = resolve(URL, cache_dir=cache, whole=True)
    assert (directory / SINGLE).read_bytes() == (model / SINGLE).read_bytes()
    reads.clear()
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.fingerprint == streamed
    for name in checkpoint.names:
        np.testing.assert_array_equal(checkpoint.tensor(name), Checkpoint.open(model).tensor(name))
    assert checkpoint.is_unchanged()
    assert reads == []
    (directory / SINGLE).write_bytes((model / SINGLE).read_bytes())
    assert not checkpoint.is_unchanged()
    (directory / SINGLE).write_bytes(b"short" * 3)
    with pytest.raises(CheckpointError, match=r"has 15 of \d+ bytes: remove it"):
        Checkpoint.open(directory)


def test_another_version_is_another_model(model: Path, cache: Path) -> None:
    first = resolve(URL, cache_dir=cache)
    old = Checkpoint.open(first)
    write_safetensors(model / SINGLE, {name: old.tensor(name) + 1 for name in old.names}, "bfloat16")
    second = resolve(URL, cache_dir=cache)
    assert second != first
    assert Checkpoint.open(second).fingerprint != old.fingerprint
    name = old.names[0]
    with pytest.raises(StoreError, match=r"model\.safetensors: was replaced while it was read: start again"):
        old.tensor(name)


def test_a_store_that_cannot_be_reached(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The version that was used last is taken from the cache."""
    del model
    directory = resolve(URL, cache_dir=cache)

    def fails(_: ObjectStore) -> list[StoredObject]:
        raise StoreError("s3://bucket: the store cannot be reached", reason=reason)

    reason = "unreachable"
    monkeypatch.setattr(ObjectStore, "list", fails)
    assert resolve(URL, cache_dir=cache) == directory
    assert "what was fetched before is taken" in caplog.text
    with pytest.raises(StoreError, match="cannot be reached"):
        resolve(URL, cache_dir=cache, whole=True)
    with pytest.raises(StoreError, match="cannot be reached"):
        resolve("s3://bucket/other", cache_dir=cache)
    reason = "other"
    with pytest.raises(StoreError, match="cannot be reached"):
        resolve(URL, cache_dir=cache)


def test_without_the_right_to_list(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Usual names are asked for; what is not there is denied."""
    split(model)
    head = ObjectStore.head

    def denied(_: ObjectStore) -> list[StoredObject]:
        raise StoreError("denied", reason="denied")

    def strict(self: ObjectStore, name: str) -> StoredObject:
        try:
            return head(self, name)
        except StoreError as error:
            raise StoreError("denied", reason="denied") from error

    monkeypatch.setattr(ObjectStore, "list", denied)
    monkeypatch.setattr(ObjectStore, "head", strict)
    assert Checkpoint.open(resolve(URL, cache_dir=cache)).names
    (model / "config.json").unlink()
    with pytest.raises(StoreError, match="denied"):
        resolve(URL, cache_dir=cache)


@pytest.mark.parametrize("listing", [True, False])
def test_the_template_for_tools_is_fetched_from_below(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, listing: bool
) -> None:
    (model / "additional_chat_templates").mkdir()
    for name in ("tool_use", "rag"):
        (model / "additional_chat_templates" / f"{name}.jinja").write_text(name)

    def denied(_: ObjectStore) -> list[StoredObject]:
        raise StoreError("denied", reason="denied")

    if not listing:
        monkeypatch.setattr(ObjectStore, "list", denied)
    fetched = resolve(URL, cache_dir=cache) / "additional_chat_templates"
    assert {path.name: path.read_text() for path in fetched.iterdir()} == {"tool_use.jinja": "tool_use"}


@pytest.mark.parametrize(
    ("reason", "says"),
    [("denied", "listing"), ("other", "listing"), ("missing", "head"), ("unreachable", "head")],
)
def test_what_denies_the_list_and_all_else_is_told_by_the_list(
    cache: Path, monkeypatch: pytest.MonkeyPatch, reason: str, says: str
) -> None:
    """An answer to HEAD has no body: wrong or expired keys look like others there."""

    def denied(_: ObjectStore) -> list[StoredObject]:
        raise StoreError("listing", reason="denied")

    def refused(*_: object) -> StoredObject:
        raise StoreError("head", reason=reason)

    monkeypatch.setattr(ObjectStore, "list", denied)
    monkeypatch.setattr(ObjectStore, "head", refused)
    with pytest.raises(StoreError, match=f"^{says}$"):
        resolve(URL, cache_dir=cache)


def test_a_web_server_lists_nothing(model: Path, buckets: Path, cache: Path) -> None:
    del model
    (buckets / "bucket").rename(buckets / "host")
    directory = resolve("https://host/model", cache_dir=cache)
    assert Checkpoint.open(directory).names
    assert directory.name.startswith("model-")


def test_what_is_missing(model: Path, buckets: Path, cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"s3://bucket/none: no config\.json there"):
        resolve("s3://bucket/none", cache_dir=cache)
    split(model)
    (model / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model/model-2\.safetensors: is not there: upload"):
        resolve(URL, cache_dir=cache)
    for bad in (b"{", b"{}", b'{"weight_map": {"a": "../x"}}', b'{"weight_map": {"a": 1}}'):
        (model / INDEX).write_bytes(bad)
        with pytest.raises(CheckpointError, match=r"index\.json: not a valid index"):
            resolve(URL, cache_dir=cache)
    assert not list((buckets.parent / "cache").glob("models/*/config.json"))


@pytest.mark.parametrize("data", [b"", b"1234567", b"\xff" * 40, (1 << 40).to_bytes(8, "little") + b"x" * 9])
def test_what_is_no_file_of_weights(model: Path, cache: Path, data: bytes) -> None:
    (model / SINGLE).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"too short|not safetensors|header is not valid"):
        Checkpoint.open(resolve(URL, cache_dir=cache))


def test_headers_that_are_long(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_BYTES", 100)
    assert Checkpoint.open(resolve(URL, cache_dir=cache)).names == Checkpoint.open(model).names


def test_a_directory_that_is_damaged_is_fetched_again(model: Path, cache: Path) -> None:
    directory = resolve(URL, cache_dir=cache)
    for damaged in (directory / NAME, directory / "config.json"):
        damaged.unlink()
        assert resolve(URL, cache_dir=cache) == directory
        assert (directory / "config.json").read_bytes() == (model / "config.json").read_bytes()
    (directory / f".{SINGLE}.header").write_bytes(b"other")
    with pytest.raises(CheckpointError, match="header: is damaged: remove"):
        Checkpoint.open(directory)
    (directory / NAME).write_bytes((directory / NAME).read_bytes().replace(b'"version": 1', b'"version": 0'))
    assert read_index(directory) is None
    with pytest.raises(CheckpointError, match="index is damaged or of another version: start again"):
        Checkpoint.open(directory)
    assert Checkpoint.open(resolve(URL, cache_dir=cache)).names


def test_large_reads_are_made_of_parts(buckets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firelane.weights.storage.remote.PART_BYTES", 1000)
    data = np.random.default_rng(0).integers(0, 256, 12_345, np.uint8)
    (buckets / "bucket" / "x").write_bytes(data.tobytes())
    store = ObjectStore(parse("s3://bucket"))
    found = RemoteBytes(store, store.head("x"), data[:50].tobytes())
    np.testing.assert_array_equal(found.take(0, 50), data[:50])
    np.testing.assert_array_equal(found.take(7, 12_000), data[7:12_007])
    np.testing.assert_array_equal(found.take(7, 1_500), data[7:1_507])
    np.testing.assert_array_equal(found.read(3, 5_001, ReadBuffer(6_000)), data[3:5_004])
    assert found.take(9, 0).nbytes == 0
    with pytest.raises(StoreError, match="s3://bucket/x: "):
        found.read(12_000, 5_001, ReadBuffer(6_000))


def test_a_gguf_file_is_pulled(buckets: Path, cache: Path) -> None:
    """With all its parts; what is made of it is the business of others."""
    for part in (1, 2):
        (buckets / "bucket" / f"m-0000{part}-of-00002.gguf").write_bytes(b"GGUF" * part)
    store = ObjectStore(parse("s3://bucket"))
    path = NodeCache(cache).gguf_file(store, "m-00001-of-00002.gguf")
    assert path.read_bytes() == b"GGUF"
    assert path.with_name("m-00002-of-00002.gguf").read_bytes() == b"GGUFGGUF"
    with pytest.raises(CheckpointError, match=r"m-00001-of-00002\.gguf"):
        resolve("s3://bucket/m-00001-of-00002.gguf", cache_dir=cache)
    with pytest.raises(StoreError, match="is not there"):
        resolve("s3://bucket/other.gguf", cache_dir=cache)
