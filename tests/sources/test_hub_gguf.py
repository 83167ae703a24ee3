"""GGUF files of the hub, by the name of their quantisation."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from firelane.errors import ModelNotFoundError
from firelane.sources.files import choose
from firelane.sources.resolve import resolve
from tests.models import toy_dense
from tests.models.families import random_tensors
from tests.models.gguf_writer import write_gguf

FILES = [
    "README.md",
    "model-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "model-Q8_0-00001-of-00002.gguf",
    "model-Q8_0-00002-of-00002.gguf",
    "mmproj-model-f16.gguf",
    "BF16/model-BF16.gguf",
    "model.imatrix.gguf",
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Q4_K_M", ["model-Q4_K_M.gguf"]),
        ("q4_k_s", ["model-Q4_K_S.gguf"]),
        ("bf16", ["BF16/model-BF16.gguf"]),
        ("Q8_0", ["model-Q8_0-00001-of-00002.gguf", "model-Q8_0-00002-of-00002.gguf"]),
        ("model-Q4_K_M", ["model-Q4_K_M.gguf"]),
    ],
)
def test_a_file_is_chosen_by_the_end_of_its_name(name: str, expected: list[str]) -> None:
    assert choose("owner/name", FILES, name) == expected


@pytest.mark.parametrize(
    ("name", "says"), [("Q5_K", "no GGUF file of the repository ends so"), ("f16", "no GGUF")]
)
def test_others_are_named_where_there_is_none(name: str, says: str) -> None:
    with pytest.raises(ModelNotFoundError, match=says) as error:
        choose("owner/name", FILES, name)
    assert "model-Q4_K_M" in str(error.value)
    assert "mmproj" not in str(error.value)


def test_several_are_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="several GGUF files end so"):
        choose("owner/name", ["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one file, in the hub's cache alone."""
    config = toy_dense.llama2() | {"torch_dtype": "float32"}
    directory = tmp_path / "snapshot"
    directory.mkdir()
    write_gguf(
        directory / "toy-F32.gguf", "llama", config, random_tensors(config, 0), fields={}, in_pairs=True
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_a, **_k: str(directory))
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path / "cache"))

    def unreachable(_: str) -> list[str]:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", unreachable)
    return directory


@pytest.mark.usefixtures("repository")
def test_hub_file_becomes_a_directory() -> None:
    directory = resolve("owner/name:F32")
    assert (directory / "config.json").is_file()
    assert directory.name.startswith("toy-F32-")


@pytest.mark.usefixtures("repository")
def test_missing_hub_file_is_named() -> None:
    with pytest.raises(ModelNotFoundError, match=r"owner/name:Q4_0: .*there are: toy-F32"):
        resolve("owner/name:Q4_0")


@pytest.mark.parametrize("model", ["owner/name:", "owner/name:a b", "a:b:c"])
def test_names_that_are_none(model: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no such directory"):
        resolve(model)


def test_parts_that_are_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"model-00002-of-00002\.gguf: no such file"):
        resolve(str(tmp_path / "model-00001-of-00002.gguf"))
    with pytest.raises(ModelNotFoundError, match=r"other\.gguf: no such file"):
        resolve(str(tmp_path / "other.gguf"))
