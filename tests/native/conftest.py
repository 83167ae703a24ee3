"""Fixtures of tests that compile."""

from __future__ import annotations

from pathlib import Path

import pytest
from workshop import Workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(root=tmp_path)
