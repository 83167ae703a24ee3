"""Options of `firelane engine` for its role and its pages: what they give, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from firelane.cli import build_parser
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.node.remote_peers import RemotePeersConfig
from firelane.server.options import router as router_options
from firelane.server.options.engine import engine_config, engine_options
from firelane.server.options.pages import with_pages

HERE = ("--kv-transfer-address", "10.0.0.1:5600")


def options(tmp_path, *words: str, key: str = "k" * 16, **changes):
    values = vars(build_parser().parse_args(["engine", "MODEL", *words]))
    settings = Environment(cache_dir=tmp_path, cluster_key=key)
    engine = msgspec.structs.replace(
        engine_config(values, tmp_path, settings), **{"backend": "cpu"} | changes
    )
    return with_pages(values, engine_options(values, engine), settings)


def test_an_engine_does_all_and_its_pages_stay(tmp_path):
    made = options(tmp_path)
    (config,) = made.configs()
    assert (config.role, config.kv_transfer_address, made.remote_peers) == ("both", "", None)


@pytest.mark.parametrize("role", ["both", "prefill", "decode"])
def test_a_role_and_an_address(tmp_path, role):
    made = options(tmp_path, "--role", role, *HERE)
    (config,) = made.configs()
    assert (config.role, config.kv_transfer_address) == (role, "10.0.0.1:5600")
    assert made.remote_peers == RemotePeersConfig("10.0.0.1", 5600, b"k" * 16)


def test_the_key_comes_from_a_file(tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef\n")
    made = options(tmp_path, *HERE, "--cluster-key-file", str(tmp_path / "key"), key="")
    assert made.remote_peers is not None
    assert made.remote_peers.key == b"0123456789abcdef"


def test_pages_by_nixl_lie_in_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(router_options, "is_installed", lambda: True)
    (config,) = options(tmp_path, *HERE, "--kv-transport", "nixl").configs()
    assert (config.kv_transport, config.kv_cache_memory) == ("nixl", "shared")


@pytest.mark.parametrize(
    ("words", "changes", "why"),
    [
        (
            ["--role", "prefill"],
            {},
            "--role prefill: .*give --kv-transfer-address IP:PORT.*--cluster-key-file",
        ),
        (["--role", "decode"], {}, "--role decode: .*give --kv-transfer-address"),
        (["--cluster-key-file", "k"], {}, "--cluster-key-file alone: .*give --kv-transfer-address"),
        (["--kv-transport", "nixl"], {}, "give --kv-transfer-address"),
        (["--kv-transfer-address", "8.8.8.8:1"], {}, "private network"),
        (["--kv-transfer-address", "host:5600"], {}, "private network"),
        (["--kv-transfer-address", "10.0.0.1"], {}, "IP:PORT"),
        (["--kv-transfer-address", "10.0.0.1:0"], {}, "a port from 1 to 65535"),
        (HERE, {"key": ""}, "give --cluster-key-file FILE, or FIRELANE_CLUSTER_KEY"),
        (HERE, {"key": "short"}, "FIRELANE_CLUSTER_KEY has 5 bytes"),
        ([*HERE, "--cluster-key-file", "/nowhere"], {}, "--cluster-key-file /nowhere"),
        (HERE, {"prefix_cache": False}, "--no-prefix-cache beside --kv-transfer-address"),
        (HERE, {"backend": "cuda", "tensor_parallel_size": 2}, "pages of several GPUs do not travel"),
    ],
)
def test_what_is_refused(tmp_path, words, changes, why):
    with pytest.raises(UsageError, match=why):
        options(tmp_path, *words, **changes)


def test_nixl_has_to_be_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(router_options, "is_installed", lambda: False)
    with pytest.raises(UsageError, match=r"pip install 'firelane\[rdma\]'"):
        options(tmp_path, *HERE, "--kv-transport", "nixl")
