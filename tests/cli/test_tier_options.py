"""Options for tiers of the KV cache, and what is refused before a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from firelane import backends
from firelane.cli import build_parser
from firelane.engine_config import GIB, EngineConfig, HostsConfig, TiersConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.options import read_table
from firelane.server.options.engine import engine_config
from firelane.server.options.sets import SERVE


def config(*options: str, **keys: Any) -> TiersConfig | None:
    """keys: of a file."""
    values = vars(build_parser().parse_args(["serve", "MODEL", *options]))
    file = read_table(SERVE, keys, Path(), lambda key, told: UsageError(f"{key}: {told}"))
    values = {**file, **values}
    return engine_config(values, Path(), Environment(cache_dir=Path())).tiers


def test_no_tier_is_the_default() -> None:
    assert config() is None


def test_sizes_are_shared_by_replicas(tmp_path: Path) -> None:
    disk = ["--kv-disk", str(tmp_path / "new" / "pages"), "--kv-disk-size", "2"]
    tiers = config("--kv-offloading-size", "4", *disk, kv_tenant_size=1, kv_admission="reuse")
    assert tiers is not None
    assert (tmp_path / "new" / "pages").is_dir()
    assert (tiers.host_bytes, tiers.disk_bytes, tiers.tenant_bytes) == (4 * GIB, 2 * GIB, GIB)
    half = tiers.share(2)
    assert (half.host_bytes, half.disk_bytes, half.tenant_bytes) == (2 * GIB, GIB, GIB // 2)
    assert (half.engines, half.admission) == (2, "reuse")
    engine = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, tiers=half)
    assert EngineConfig.from_json(engine.to_json()) == engine


@pytest.mark.parametrize(
    "options",
    [
        ["--kv-disk-size", "2"],
        ["--kv-offloading-size", "2", "--kv-disk-size", "2"],
        ["--kv-disk-key-file", "key"],
    ],
    ids=" ".join,
)
def test_options_about_a_tier_that_is_not_there(options: list[str]) -> None:
    with pytest.raises(UsageError, match=f"{options[-2]} is about tiers"):
        config(*options)


@pytest.mark.parametrize("keys", [{"kv_tenant_size": 2}, {"kv_admission": "reuse"}], ids=str)
def test_keys_about_a_tier_that_is_not_there(keys: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(keys))} is about tiers"):
        config(**keys)


def test_a_directory_may_be_of_a_group_as_volumes_of_kubernetes_are(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2770)
    tiers = config("--kv-disk", str(volume))
    assert tiers is not None
    assert tiers.disk == volume


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    file, shared = tmp_path / "file", tmp_path / "shared"
    file.write_text("")
    shared.mkdir()
    shared.chmod(0o777)
    others = "other users can put pages there; chmod o-w"
    for path, why in ((file, "File exists"), (file / "below", "Not a directory"), (shared, others)):
        with pytest.raises(UsageError, match=why):
            config("--kv-disk", str(path))


HOSTS = HostsConfig(count=2, own=0, address="127.0.0.1", port=1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prefix_cache": False}, "prefix cache"),
        ({"tensor_parallel_size": 2, "hosts": HOSTS}, r"ranks on several hosts \(--nnodes 2\) have no tiers"),
    ],
    ids=["no prefix cache", "hosts"],
)
def test_engines_without_tiers(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, tiers=TiersConfig(host_bytes=1), **changes)


def test_one_gpu_has_tiers_and_several_have_none(tmp_path: Path) -> None:
    engine = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, tiers=TiersConfig(host_bytes=GIB))
    backends.check("cuda", engine)
    several = msgspec.structs.replace(engine, tensor_parallel_size=2)
    with pytest.raises(UsageError, match=r"pages of several GPUs \(--tensor-parallel-size 2\) have no tiers"):
        backends.check("cuda", several)
    backends.check("cpu", several)


def test_the_engine_reaches_pages_of_ranks_where_something_asks_for_it(tmp_path: Path) -> None:
    plain = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path)
    asks: list[dict[str, Any]] = [
        {"tiers": TiersConfig(host_bytes=1)},
        {"kv_cache_memory": "shared"},
        {"kv_transfer_address": "10.0.0.1:5600"},
    ]
    assert not plain.reaches_pages
    assert all(msgspec.structs.replace(plain, **one).reaches_pages for one in asks)
