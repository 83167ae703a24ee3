"""Options of a worker, against stand-ins of Dynamo's types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dynamo_types
import pytest
from dynamo_types import DisaggregationMode

from firelane.errors import UsageError
from firelane.node.remote_peers import RemotePeersConfig
from firelane.server.options import router as router_options

KEY = "0123456789abcdef"
PREFILL = ("--disaggregation-mode", "prefill", "--kv-transfer-address", "10.0.0.7:5600")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Reads the words of a command line, of a worker with a key of the cluster."""
    dynamo_types.install(monkeypatch)
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FIRELANE_CLUSTER_KEY", KEY)
    from firelane_dynamo.options import read_options

    return lambda *words: read_options(["--backend", "cpu", *words])


@pytest.fixture
def has_nixl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_options, "is_installed", lambda: True)


def test_a_worker_alone_serves_the_embedded_model(read) -> None:
    made = read()
    assert (made.worker.served_model_name, made.worker.component) == ("firelane-embedded", "backend")
    assert made.worker.disaggregation_mode is DisaggregationMode.AGGREGATED
    assert (made.engine.cache_events, made.engine.kv_transport, made.peers) == (True, "tcp", None)


def test_a_worker_for_prefill_gives_pages_over_the_connection(read) -> None:
    made = read(*PREFILL)
    assert made.worker.component == "prefill"
    assert made.peers == RemotePeersConfig("10.0.0.7", 5600, KEY.encode())
    engine = made.engine
    assert (engine.kv_transfer_address, engine.kv_transport) == ("10.0.0.7:5600", "tcp")
    assert engine.kv_cache_memory == "private"
    assert read(*PREFILL, "--kv-transport", "tcp").engine == engine


@pytest.mark.usefixtures("has_nixl")
@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_pages_by_nixl_lie_in_shared_memory(read, mode: str) -> None:
    made = read(*PREFILL, "--disaggregation-mode", mode, "--kv-transport", "nixl")
    assert (made.engine.kv_transport, made.engine.kv_cache_memory) == ("nixl", "shared")
    assert made.engine.kv_transfer_address == "10.0.0.7:5600"
    made = read(*PREFILL, "--backend", "null", "--kv-transport", "nixl")
    assert (made.engine.kv_transport, made.engine.kv_cache_memory) == ("nixl", "private")


@pytest.mark.usefixtures("has_nixl")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kv-transport", "nixl"), "nixl: give --kv-transfer-address"),
        (("--disaggregation-mode", "decode", "--kv-transport", "nixl"), "nixl: give --kv-transfer-address"),
        ((*PREFILL, "--disaggregation-mode", "agg"), "give --disaggregation-mode prefill or decode"),
        ((*PREFILL, "--kv-transfer-address", "8.8.8.8:5600"), "an address of a private network"),
        ((*PREFILL, "--no-prefix-cache"), "pages are found by the prefix cache"),
        (
            (*PREFILL, "--tensor-parallel-size", "2", "--kv-transport", "nixl"),
            "pages of several ranks travel over the connection",
        ),
    ],
)
def test_what_cannot_work_is_refused(read, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(*words)


def test_nixl_has_to_be_installed(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_options, "is_installed", lambda: False)
    with pytest.raises(UsageError, match=r"pip install 'firelane\[rdma\]'"):
        read(*PREFILL, "--kv-transport", "nixl")


def test_a_transport_that_nobody_knows_is_refused(read, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(*PREFILL, "--kv-transport", "rdma")
    assert "'rdma' is not one of tcp, nixl" in capsys.readouterr().err
