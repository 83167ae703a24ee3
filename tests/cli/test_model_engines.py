"""The engines of one model as its node sees them: all come and go together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firelane.engine_config import EngineConfig
from firelane.gateway.engines.link.link_state import LinkState
from firelane.gateway.engines.recovery.recovery import NoRecovery
from firelane.server.engine_shares import EngineOptions
from firelane.server.model_engines import ModelEngines
from firelane.wire.frames import Asleep, Awake, Ready

ROLES = ("prefill", "decode")
READY = Ready(
    protocol=0,
    pid=1,
    model="m",
    vocab_size=9,
    max_model_len=9,
    max_num_seqs=1,
    block_size=16,
    num_blocks=4,
    weights_bytes=100,
    kv_bytes=20,
    load_s=0.1,
    states_bytes=3,
    can_sleep=True,
)


class Server:
    """Names of what the node is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.told.append(name)


def options_of(tmp_path: Path, **changes: Any) -> EngineOptions:
    return EngineOptions(engine=EngineConfig(model_dir=tmp_path, cache_dir=tmp_path), **changes)


@pytest.fixture
def engines(tmp_path: Path) -> ModelEngines:
    """Two, which serve."""
    made = ModelEngines("m", options_of(tmp_path, replicas=2, prefill=1, decode=1), Server())  # pyright: ignore
    ends = made.make_replicas()
    for name in ("0", "1"):
        link = ends.add(name)
        link._connection = SimpleNamespace(send=lambda _: None, close=lambda: None)  # pyright: ignore
        link.serve(READY)
        made.on_ready(name, READY)
    return made


def told(engines: ModelEngines) -> list[str]:
    server: Any = engines._server
    found, server.told = [one for one in server.told if one != "on_ready"], []
    return found


def put_to_standby(engines: ModelEngines) -> list[Any]:
    assert engines.replicas is not None
    engines.sleep()
    for link in engines.replicas.links:
        assert told(engines) == []
        link.receive(Asleep(1, 2, 0.0))
    assert told(engines) == ["on_asleep"]
    return engines.replicas.links


def test_the_last_one_that_comes_back_counts(engines: ModelEngines) -> None:
    links = put_to_standby(engines)
    assert engines.standby_bytes == 4
    engines.wake()
    links[1].receive(Awake(0.0))
    assert told(engines) == []
    links[0].receive(Awake(0.0))
    assert told(engines) == ["on_awake"]


def test_one_that_nobody_starts_again_is_not_waited_for(engines: ModelEngines) -> None:
    assert engines.replicas is not None
    first, second = engines.replicas.links
    first.lose("killed once too often")
    told(engines)
    engines.sleep()
    second.receive(Asleep(1, 2, 0.0))
    assert told(engines) == ["on_asleep"]
    engines.wake()
    second.receive(Awake(0.0))
    assert told(engines) == ["on_awake"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_that_dies_on_its_way_back_is_not_waited_for(engines: ModelEngines, order) -> None:
    links = put_to_standby(engines)
    engines.wake()
    links[order[0]].receive(Awake(0.0))
    links[order[1]].lose("killed")
    assert told(engines) == ["on_awake"]


def test_the_other_one_counts_where_the_first_has_died(engines: ModelEngines) -> None:
    links = put_to_standby(engines)
    engines.wake()
    links[0].lose("killed")
    assert told(engines) == []
    links[1].receive(Awake(0.0))
    assert told(engines) == ["on_awake"]


def test_memory_is_that_of_all_engines_though_only_one_has_told(engines: ModelEngines) -> None:
    assert engines.ready_bytes == 2 * 123
    assert engines.replicas is not None
    engines.replicas.links[0].lose("killed")
    assert engines.ready_bytes == 2 * 123


async def _reconfigure(engines: ModelEngines, options: EngineOptions) -> None:
    await engines.reconfigure(options)
    await engines.fleet.stop()


def test_other_engines_have_the_router_and_recovery_of_their_options(
    engines: ModelEngines, tmp_path: Path
) -> None:
    import asyncio

    asyncio.run(_reconfigure(engines, options_of(tmp_path, replicas=3, recovery=False, shares_pages=True)))
    assert engines.replicas is not None
    assert [link.name for link in engines.replicas.links] == ["0", "1", "2"]
    assert isinstance(engines.replicas._recovery, NoRecovery)
    assert engines.replicas._router.follows_pages
    assert engines.ready_bytes == 0
    assert all(link.state is LinkState.STARTING for link in engines.replicas.links)
