"""Places of a model's files, without asking the hub; fetching them in another process; taking them away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
from huggingface_hub.hf_api import BlobLfsInfo, RepoSibling

from firelane.errors import CacheError, FirelaneError
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.sources import hub_cache
from firelane.sources.fetch import fetch
from firelane.sources.locate import ModelSource
from firelane.sources.resolve import EMBEDDED, resolve
from firelane.storage import UseMark
from firelane.weights.packing.loader import load_packed
from tests.models.families import make_checkpoint

COMMIT = "c0ffee"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, empty."""
    directory = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(directory))
    return directory


def snapshot(hub: Path, name: str) -> Path:
    """A repository's directory, as the hub's library makes it."""
    folder = hub / f"models--{name.replace('/', '--')}"
    directory = folder / "snapshots" / COMMIT
    directory.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return directory


def add(directory: Path, name: str, data: bytes = b"{}") -> None:
    blob = directory.parent.parent / "blobs" / f"blob-of-{name}"
    blob.write_bytes(data)
    (directory / name).symlink_to(blob)


@pytest.mark.parametrize(
    ("text", "hub_id", "gguf"),
    [
        ("owner/name", "owner/name", ""),
        ("owner/name:Q4_K_M", "owner/name", "Q4_K_M"),
        ("s3://bucket/x", "", ""),
        ("./x", "", ""),
        (None, "", ""),
    ],
)
def test_kinds(text: str | None, hub_id: str, gguf: str, tmp_path: Path) -> None:
    source = ModelSource(text, tmp_path)
    assert (source.hub_id, source.gguf_name) == (hub_id, gguf)
    assert source.is_pulled == bool(hub_id or (text or "").startswith("s3"))


def test_what_lies_on_this_machine_is_always_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    source = ModelSource(str(tmp_path), tmp_path)
    assert (source.locate(), source.is_there(), source.is_pulled) == (tmp_path, True, False)
    assert ModelSource(None, tmp_path).locate() == EMBEDDED


def test_a_model_of_the_hub_is_here_when_its_weights_are(hub: Path, tmp_path: Path) -> None:
    source = ModelSource("owner/name", tmp_path)
    assert source.locate() is None
    directory = snapshot(hub, "owner/name")
    add(directory, "config.json")
    assert not source.is_there()
    add(directory, "model-00001-of-00002.safetensors")
    assert not source.is_there()
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    add(directory, "model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())
    assert not source.is_there()
    add(directory, "model-00002-of-00002.safetensors")
    assert source.locate() == directory
    single = snapshot(hub, "owner/single")
    add(single, "config.json")
    add(single, "model.safetensors", bytes(9000))
    assert ModelSource("owner/single", tmp_path).locate() == single
    assert ModelSource("owner/single", tmp_path).remove() >= 9000
    assert ModelSource("owner/single", tmp_path).locate() is None
    assert source.is_there()


def test_a_gguf_file_of_the_hub_is_one_of_several(hub: Path, tmp_path: Path) -> None:
    directory = snapshot(hub, "owner/name")
    for name in ("m-Q4_0.gguf", "m-Q8_0-00001-of-00002.gguf"):
        add(directory, name, b"GGUF")
    four, eight = ModelSource("owner/name:Q4_0", tmp_path), ModelSource("owner/name:Q8_0", tmp_path)
    assert (four.is_there(), eight.is_there()) == (True, False)
    add(directory, "m-Q8_0-00002-of-00002.gguf", b"GGUF")
    assert eight.is_there()
    hub_cache.remove("owner/name", directory / "m-Q8_0-00001-of-00002.gguf")
    assert (four.is_there(), eight.is_there()) == (True, False)


def test_bytes_that_have_come(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = snapshot(hub, "owner/name")
    blobs = directory.parent.parent / "blobs"
    siblings = [
        RepoSibling("config.json", size=4096, blob_id="c"),
        RepoSibling("model.safetensors", size=8192, lfs=BlobLfsInfo(size=8192, sha256="w", pointer_size=1)),
        RepoSibling("pytorch_model.bin", size=99999, blob_id="b"),
    ]
    info = type("Info", (), {"siblings": siblings})
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_a, **_k: info)
    expected = hub_cache.expected_blobs("owner/name")
    assert expected == {"c": 4096, "w": 8192}
    assert hub_cache.bytes_there("owner/name", expected) == 0
    (blobs / "c").write_bytes(bytes(4096))
    (blobs / "w.incomplete").write_bytes(bytes(4096))
    assert hub_cache.bytes_there("owner/name", expected) == 8192


def test_a_model_of_a_store_is_absent_until_it_was_fetched(buckets: Path, tmp_path: Path) -> None:
    make_checkpoint("llama_bias", "bfloat16", buckets / "bucket" / "a")
    cache_dir = tmp_path / "cache"
    source = ModelSource("s3://bucket/a", cache_dir)
    assert (source.locate(), source.is_there()) == (None, False)
    directory = resolve("s3://bucket/a", cache_dir=cache_dir, whole=True)
    assert source.locate() == directory
    packed = load_packed(load_program(read_config(directory)), directory, cache_dir)
    with UseMark(packed.path.with_suffix(".used")), pytest.raises(CacheError, match="used by a process"):
        source.remove()
    packed.close()
    assert source.remove() > 0
    assert not source.is_there()


def test_another_process_fetches_and_says_what_is_wrong(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    async def scenario() -> None:
        await fetch(str(EMBEDDED), tmp_path, lambda *bytes_: told.append(bytes_), whole=True)
        with pytest.raises(FirelaneError, match=r"/no/such: no such directory"):
            await fetch("/no/such", tmp_path, lambda *_: None, whole=False)
        pending = asyncio.ensure_future(fetch(str(EMBEDDED), tmp_path, lambda *_: None, whole=True))
        await asyncio.sleep(0)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert told == []
