"""Names of models: short ones, the user's own, and those of models that other programs keep."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from firelane import env
from firelane.errors import ModelNotFoundError, UsageError
from firelane.sources import aliases as own
from firelane.sources.locate import ModelSource
from firelane.sources.names import source_of
from firelane.sources.others import find, found_models, ollama_blob
from firelane.sources.resolve import HUB_ID, resolve
from firelane.sources.short_names import SHORT_NAMES
from tests.models import toy_dense
from tests.models.families import random_tensors
from tests.models.gguf_writer import write_gguf

WEIGHTS = b"GGUF" + bytes(60)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, of a user who has set nothing."""
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    for name in (
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "HF_HOME",
        "HF_HUB_CACHE",
        "OLLAMA_MODELS",
        "LLAMA_CACHE",
    ):
        monkeypatch.delenv(name, raising=False)
    return directory


def put_ollama(home: Path, name: str, data: bytes = WEIGHTS, **changes: Any) -> Path:
    """A model of Ollama; name: HOST/OWNER/NAME/TAG. Returns its blob."""
    root, digest = home / ".ollama" / "models", hashlib.sha256(data).hexdigest()
    manifest, blob = root / "manifests" / name, root / "blobs" / f"sha256-{digest}"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    template = {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:0"}
    manifest.write_text(json.dumps({"layers": [template, layer], **changes}))
    return blob


def put(path: Path, data: bytes = WEIGHTS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# ---- short names


def test_short_names_are_plain_and_mean_hub_ids() -> None:
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*(:[a-z0-9.-]+)?", name) for name in SHORT_NAMES)
    assert all(HUB_ID.fullmatch(hub_id) and hub_id.count("/") == 1 for hub_id in SHORT_NAMES.values())
    for name, hub_id in SHORT_NAMES.items():
        family = name.partition(":")[0]
        assert SHORT_NAMES[family] in {h for n, h in SHORT_NAMES.items() if n.startswith(f"{family}:")}, (
            hub_id
        )


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("qwen3:0.6b", "Qwen/Qwen3-0.6B"),
        ("qwen3", "Qwen/Qwen3-8B"),
        ("qwen3:latest", "Qwen/Qwen3-8B"),
        ("SmolLM2", "HuggingFaceTB/SmolLM2-1.7B-Instruct"),
        ("gemma3:4b", "google/gemma-3-4b-it"),
        ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B"),
    ],
)
def test_short_names(name: str, hub_id: str) -> None:
    assert source_of(name) == hub_id
    assert ModelSource(name, Path("/nowhere")).hub_id == hub_id


@pytest.mark.parametrize(
    "text", ["owner/name", "owner/name:Q4_K_M", "nobody-knows", "qwen3:9b", "s3://bucket/qwen3", "", "../x"]
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert source_of(text) == text


def test_what_is_there_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen3").mkdir()
    monkeypatch.chdir(tmp_path)
    own.set_alias("qwen3", "a/b")
    assert source_of("qwen3") == "qwen3"
    assert source_of("qwen3:0.6b") == "Qwen/Qwen3-0.6B"


# ---- the user's own


def test_aliases_are_kept_and_forgotten(home: Path) -> None:
    assert own.aliases() == {}
    own.set_alias("mine", "owner/name:Q8_0")
    own.set_alias("small:v1", "qwen3:0.6b")
    assert (home / ".config" / "firelane" / "aliases.json").is_file()
    assert source_of("mine") == "owner/name:Q8_0"
    assert source_of("small:v1") == "Qwen/Qwen3-0.6B"  # an alias of a short name
    own.set_alias("mine", "other/name")
    assert source_of("mine") == "other/name"
    own.remove_alias("mine")
    assert source_of("mine") == "mine"


def test_an_alias_goes_before_a_short_name_and_before_others_models(home: Path) -> None:
    put_ollama(home, "registry.ollama.ai/library/qwen3/8b")
    own.set_alias("qwen3:8b", "owner/better")
    assert source_of("qwen3:8b") == "owner/better"


def test_an_alias_of_an_alias_is_refused() -> None:
    own.set_alias("a", "x/y")
    with pytest.raises(UsageError, match="a is an alias itself"):
        own.set_alias("b", "a")
    with pytest.raises(UsageError, match="is an alias itself"):
        own.set_alias("c", "c")


@pytest.mark.parametrize("name", ["", "a/b", "../up", "-x", "a b", "a:b:c", "s3://x"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError, match="is no name"):
        own.set_alias(name, "x/y")


def test_an_alias_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(UsageError, match="mine is no alias"):
        own.remove_alias("mine")


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{", "\xff"])
def test_a_damaged_file_is_said(home: Path, text: str) -> None:
    path = put(home / ".config" / "firelane" / "aliases.json", text.encode("latin-1"))
    with pytest.raises(UsageError, match=re.escape(str(path))):
        source_of("mine")


# ---- models of other programs


def test_models_of_ollama(home: Path) -> None:
    blob = put_ollama(home, "registry.ollama.ai/library/gemma3/270m")
    other = put_ollama(home, "hf.co/owner/name/Q4_K_M", WEIGHTS + b"x")
    assert source_of("gemma3:270m") == str(blob)  # not the hub's: it is here
    assert source_of("hf.co/owner/name:Q4_K_M") == str(other)
    assert source_of("gemma3") == "google/gemma-3-4b-it"
    found = {one.name: one for one in found_models(env.model_places())}
    assert set(found) == {"gemma3:270m", "hf.co/owner/name:Q4_K_M"}
    assert (found["gemma3:270m"].nbytes, found["gemma3:270m"].keeper) == (64, "Ollama")
    assert all(source_of(name) == one.source for name, one in found.items())


BAD_LAYERS: list[Any] = [
    [],
    None,
    [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}],
    [{"mediaType": "application/vnd.ollama.image.model", "digest": 7}],
    [{"mediaType": "application/vnd.ollama.image.model"}],
    ["x"],
    [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'0' * 64}"}],
]


@pytest.mark.parametrize("layers", BAD_LAYERS)
def test_bad_manifests_are_passed_over(home: Path, layers: Any) -> None:
    put_ollama(home, "registry.ollama.ai/library/bad/latest", layers=layers)
    assert found_models(env.model_places()) == []
    assert source_of("bad") == "bad"


def test_a_manifest_that_is_no_json_and_a_blob_of_another_kind_are_passed_over(home: Path) -> None:
    put_ollama(home, "registry.ollama.ai/library/other/latest", b"no GGUF")
    put(home / ".ollama/models/manifests/registry.ollama.ai/library/text/latest", b"{")
    assert found_models(env.model_places()) == []


def test_a_model_with_an_adapter_is_passed_over(home: Path) -> None:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    kinds = ("model", "adapter")
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"} for kind in kinds
    ]
    put_ollama(home, "registry.ollama.ai/library/tuned/latest", layers=layers)
    assert source_of("tuned") == "tuned"


@pytest.mark.parametrize("name", ["..", "../../x", "a/b/../c", "a:../b", "/etc/passwd", "a//b"])
def test_names_do_not_lead_out_of_a_directory(home: Path, name: str) -> None:
    put(home / ".ollama" / "x", b"{}")
    assert ollama_blob(home / ".ollama" / "models", name) is None
    assert find(name, env.model_places()) is None


def test_files_of_lm_studio_and_llama_cpp(home: Path) -> None:
    one = put(home / ".lmstudio" / "models" / "owner" / "repo" / "small-Q4_K_M.gguf")
    first = put(home / ".cache" / "llama.cpp" / "big-00001-of-00002.gguf")
    put(home / ".cache" / "llama.cpp" / "big-00002-of-00002.gguf")
    put(home / ".cache" / "llama.cpp" / "half-00001-of-00002.gguf")
    put(home / ".cache" / "llama.cpp" / "mmproj-big.gguf")
    found = {model.name: model for model in found_models(env.model_places())}
    assert {name: (model.keeper, model.nbytes) for name, model in found.items()} == {
        "big": ("llama.cpp", 128),
        "small-Q4_K_M": ("LM Studio", 64),
    }
    assert source_of("small-Q4_K_M") == str(one)
    assert source_of("big") == str(first)


def test_models_of_the_hub(home: Path) -> None:
    folder = home / ".cache" / "huggingface" / "hub" / "models--owner--name"
    put(folder / "refs" / "main", b"abc")
    put(folder / "snapshots" / "abc" / "model.safetensors")
    assert found_models(env.model_places()) == []  # no config: not whole
    put(folder / "snapshots" / "abc" / "config.json", b"{}")
    put(folder / "snapshots" / "abc" / "quantised-Q8_0.gguf")
    names = [model.name for model in found_models(env.model_places())]
    assert names == ["owner/name", "owner/name:quantised-Q8_0"]
    put(home / ".cache" / "huggingface" / "hub" / "models--a--b" / "x")
    assert len(found_models(env.model_places())) == 2


def test_places_by_the_programs_own_variables() -> None:
    own_places = env.model_places(
        {"HOME": "/h", "OLLAMA_MODELS": "/o", "LLAMA_CACHE": "/l", "HF_HOME": "/f", "XDG_CACHE_HOME": "/x"}
    )
    assert (own_places.ollama, own_places.llama_cpp) == ((Path("/o"),), Path("/l"))
    assert own_places.hub == Path("/f/hub")
    assert own_places.lm_studio == (Path("/h/.lmstudio/models"), Path("/x/lm-studio/models"))
    assert env.model_places({"HOME": "/h", "HF_HUB_CACHE": "/c"}).hub == Path("/c")
    assert env.config_dir({"HOME": "/h"}) == Path("/h/.config/firelane")
    assert env.config_dir({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}) == Path("/c/firelane")


def test_a_blob_is_a_model_without_a_copy(home: Path, tmp_path: Path) -> None:
    config = toy_dense.llama2() | {"torch_dtype": "float32"}
    tensors = random_tensors(config, 0)
    path = write_gguf(tmp_path / "toy.gguf", "llama", config, tensors, fields={}, in_pairs=True)
    put_ollama(home, "registry.ollama.ai/library/toy/latest", path.read_bytes())
    own.set_alias("mine", "toy")
    for name in ("toy", "toy:latest", "mine"):
        directory = resolve(name, cache_dir=tmp_path / "cache")
        assert (directory / "config.json").is_file()
    assert sum(p.stat().st_size for p in (tmp_path / "cache").rglob("*") if p.is_file()) < path.stat().st_size
    with pytest.raises(ModelNotFoundError, match="is a file; give a"):
        resolve(str(put(tmp_path / "sha256-abc", b"no GGUF")))
