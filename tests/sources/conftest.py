"""Buckets that are directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from firelane.stores.client import ObjectStore


@pytest.fixture
def buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose directories are buckets of every store that is opened."""
    store = pytest.importorskip("obstore.store", reason="obstore is not installed")
    root = tmp_path / "buckets"
    (root / "bucket").mkdir(parents=True)
    monkeypatch.setattr(ObjectStore, "_connect", lambda self: store.LocalStore(root / self.address.host))
    return root
