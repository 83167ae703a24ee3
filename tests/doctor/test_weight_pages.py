"""The doctor describes the pages that weights get."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from firelane.doctor import report
from firelane.doctor.report import examine_weight_pages, existing_parent, mapped_files_are_huge
from firelane.native.pages import MappedFile


@pytest.mark.parametrize(
    ("in_files", "in_private", "said"),
    [
        (True, False, "huge pages, shared by replicas"),
        (False, True, "huge pages by private copies (weights_pages)"),
        (False, False, "small pages, and decoding waits for them: write madvise to /sys/kernel/mm"),
    ],
)
def test_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_files: bool, in_private: bool, said: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(report, "mapped_files_are_huge", lambda _: in_files)
    monkeypatch.setattr(report, "private_huge_pages", lambda: in_private)
    assert examine_weight_pages(tmp_path).startswith(said)


def test_another_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert examine_weight_pages(tmp_path) == "pages as the system gives them"


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_file_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr(MappedFile, "huge_share", lambda *_: share)
    monkeypatch.setattr(MappedFile, "populate", lambda *_: None)
    assert mapped_files_are_huge(tmp_path) is (share > 0)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not mapped_files_are_huge(tmp_path / "file")
    assert existing_parent(tmp_path / "file" / "below") == tmp_path / "file"
    assert existing_parent(tmp_path / "not" / "made") == tmp_path
