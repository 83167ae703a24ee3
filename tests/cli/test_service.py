"""What `serve` does around its two processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firelane.cli.progress import ProgressDisplay
from firelane.cli.service import STOP_S, _Service
from firelane.gateway.config import GatewayConfig
from firelane.wire.engine_config import EngineConfig


@pytest.fixture
def service(tmp_path: Path) -> _Service:
    config = GatewayConfig(
        model_dir=tmp_path, served_model_names=("m",), host="127.0.0.1", port=0, max_queue=1
    )
    return _Service(config, EngineConfig(model_dir=tmp_path, cache_dir=tmp_path), ProgressDisplay())


@pytest.mark.parametrize(
    ("link", "grace_s"),
    [(None, 0.0), (SimpleNamespace(ready=None), 0.0), (SimpleNamespace(ready=object()), STOP_S)],
    ids=["no-gateway-yet", "loading", "serving"],
)
def test_only_an_engine_that_serves_is_waited_for(service: _Service, link: Any, grace_s: float) -> None:
    service._link = link
    assert service._engine_grace_s() == grace_s
