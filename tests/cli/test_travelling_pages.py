"""Options that keep pages of an engine from travelling, refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from firelane import backends
from firelane.engine_config import EngineConfig, HostsConfig
from firelane.errors import UsageError
from firelane.server.engine_shares import EngineOptions
from firelane.server.options.travelling_pages import check_mapped, check_travelling

HOSTS = HostsConfig(count=2, own=0, address="127.0.0.1", port=1)
RANKS = {"tensor_parallel_size": 2}


def engine(**changes: Any) -> EngineConfig:
    return EngineConfig(model_dir=Path("m"), cache_dir=Path("c"), **{"backend": "cpu", **changes})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prefix_cache": False}, "--no-prefix-cache beside --x: pages are found by the prefix cache"),
        ({"hosts": HOSTS, **RANKS}, "--nnodes 2 beside --x: pages of several hosts do not travel"),
        ({"backend": "cuda", **RANKS}, "--tensor-parallel-size 2 beside --x: pages of several GPUs"),
    ],
    ids=["no prefix cache", "hosts", "GPUs"],
)
def test_pages_that_do_not_travel(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_travelling(engine(**changes), "--x")


@pytest.mark.parametrize("changes", [{}, RANKS, {"backend": "cuda"}, {"backend": "null"}], ids=str)
def test_pages_that_travel(changes: dict[str, Any]) -> None:
    check_travelling(engine(**changes), "--x")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (RANKS, "--tensor-parallel-size 2 beside --kv-transport nixl: pages of several ranks travel over"),
        ({"backend": "cuda"}, "--backend cuda beside --kv-transport nixl: pages of a GPU travel over"),
    ],
    ids=["ranks", "GPU"],
)
def test_pages_that_nobody_maps_do_not_travel_by_nixl(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_mapped(engine(**changes), "--kv-transport nixl")
    check_mapped(engine(), "--kv-transport nixl")


def test_engines_with_roles_have_shared_memory_where_there_is_such(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name, has_gpu in (("auto", True), ("auto", False), ("cuda", True), ("cpu", True), ("null", True)):
        is_gpu = {"auto": has_gpu, "cuda": True}.get(name, False)
        monkeypatch.setattr("firelane.server.engine_shares.takes_gpu", lambda _, is_gpu=is_gpu: is_gpu)
        options = EngineOptions(engine=engine(backend=name), replicas=2, prefill=1, decode=1)
        configs = options.configs()
        assert [config.role for config in configs] == ["prefill", "decode"]
        (found[name, has_gpu],) = {config.kv_cache_memory for config in configs}
    assert found == {
        ("auto", True): "private",
        ("auto", False): "shared",
        ("cuda", True): "private",
        ("cpu", True): "shared",
        ("null", True): "private",
    }


def test_a_gpu_takes_roles() -> None:
    config = msgspec.structs.replace(engine(backend="cuda"), kv_cache_bytes=1 << 30)
    for one in EngineOptions(engine=config, replicas=2, prefill=1, decode=1).configs():
        backends.check("cuda", one)
