from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from firelane.errors import ModelNotFoundError
from firelane.sources.files import OF_A_MODEL
from firelane.sources.resolve import EMBEDDED, resolve


def test_embedded() -> None:
    assert resolve(None) == EMBEDDED


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == tmp_path


def test_file(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(ModelNotFoundError, match="is a file"):
        resolve(str(tmp_path / "model.bin"))


@pytest.mark.parametrize("model", ["/no/such/dir", "./x", "a/b/c", "..", "-x", "a b"])
def test_neither_directory_nor_hub_id(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ModelNotFoundError, match=r"no such directory|no config\.json"):
        resolve(model)


def test_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(hub_id: str, *, allow_patterns: list[str]) -> str:
        asked.append((hub_id, allow_patterns))
        return str(tmp_path)

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    stages: list[tuple[str, float]] = []
    assert resolve("owner/name", progress=lambda stage, done, *_: stages.append((stage, done))) == tmp_path
    assert asked == [("owner/name", OF_A_MODEL)]
    assert stages == [("download", 0), ("download", 1)]
    assert not any(pattern.endswith((".bin", ".py", ".pt")) for pattern in OF_A_MODEL)


@pytest.mark.parametrize(
    ("error", "says"),
    [(LocalEntryNotFoundError("x\ny"), "HF_HUB_OFFLINE"), (OSError("disk\nfull"), "download failed: disk$")],
)
def test_hub_errors_are_one_line(error: Exception, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_args: object, **_kwargs: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFoundError, match=says) as caught:
        resolve("owner/name")
    assert "\n" not in str(caught.value)
