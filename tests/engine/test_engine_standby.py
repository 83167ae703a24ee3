"""The order in which an engine goes to standby: what others have of its memory is let go before it is given
back, and pages are forgotten before that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firelane.contract import GivenBack
from firelane.engine.process.ready import can_sleep
from firelane.engine.process.standby import EngineStandby
from firelane.engine_config import EngineConfig


class Part:
    """Notes what it is asked to do."""

    can_sleep = True

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def __getattr__(self, name: str) -> Any:
        def call() -> GivenBack:
            self._calls.append(f"{self._name}.{name}")
            return GivenBack(5, 7)

        return call


def test_others_let_go_before_memory_is_given_back() -> None:
    calls: list[str] = []
    parts = [Part(name, calls) for name in ("executor", "kv", "tiers", "peers", "drafter")]
    standby = EngineStandby(*parts)  # pyright: ignore[reportArgumentType]
    asleep = standby.sleep()
    standby.sleep()
    order = ["kv.forget", "peers.standby", "tiers.standby", "executor.standby", "drafter.standby"]
    assert calls == order
    assert asleep.released_bytes >= 10
    calls.clear()
    for _ in range(2):
        standby.wake()
    assert calls == ["executor.wake", "drafter.wake", "peers.wake"]


@pytest.mark.parametrize(("transport", "sleeps"), [("tcp", True), ("nixl", False)])
def test_an_engine_whose_memory_another_process_keeps_mapped_knows_no_standby(
    tmp_path: Path, transport: str, sleeps: bool
) -> None:
    config = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, kv_transport=transport)
    executor: Any = Part("executor", [])
    assert can_sleep(executor, config) is sleeps
