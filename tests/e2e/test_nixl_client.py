"""Two servers whose pages travel by NIXL: the client gets what one server would have given."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_support import metric, wait_until

from firelane.bench.server import ServerProcess, descendants
from firelane.nixl.installed import is_installed
from tests.e2e.test_transfer_client import free_port, pages_come_in_time

pytestmark = pytest.mark.skipif(not is_installed(), reason="NIXL is not installed (the extra `rdma`)")
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def servers(
    environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """prefill, decode."""
    key_file = tmp_path_factory.mktemp("key") / "cluster"
    key_file.write_text("0123456789abcdef0123456789abcdef\n")
    with start(environ, key_file) as prefill, start(environ, key_file) as decode:
        yield prefill, decode


def start(environ: dict[str, str], key_file: Path) -> ServerProcess:
    options = ["--kv-transport", "nixl", "--kv-transfer-address", f"127.0.0.1:{free_port()}"]
    return ServerProcess(
        ["--threads", "1", "--max-num-seqs", "8", *options, "--cluster-key-file", str(key_file)],
        environ={**environ, "FIRELANE_LOG_LEVEL": "debug"},
    )


def test_pages_of_engines_in_their_sandboxes_travel_by_nixl(
    servers: tuple[ServerProcess, ServerProcess], cpu_server: ServerProcess
) -> None:
    prefill, decode = servers
    before = metric(decode.url, "firelane:kv_pulled_bytes_total")
    pages_come_in_time(prefill, decode, cpu_server, PATH, 70)
    assert metric(decode.url, "firelane:kv_pulled_bytes_total") > before
    assert "transport=nixl" in decode.log
    assert "nixl_" not in decode.log + prefill.log  # no agent was lost, or refused


def agent(server: ServerProcess) -> int | None:
    """The process of the engine that runs NIXL; None where there is none now."""
    for pid in descendants(server.process.pid):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"firelane.nixl\0" in command and b"\0agent\0" in command:
                return pid
    return None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("whose", ["prefill", "decode"])
def test_answers_are_the_same_when_an_agent_is_lost_and_another_one_takes_its_place(
    servers: tuple[ServerProcess, ServerProcess],
    cpu_server: ServerProcess,
    whose: str,
    number: signal.Signals,
) -> None:
    prefill, decode = servers
    server = prefill if whose == "prefill" else decode
    wait_until(lambda: agent(server) is not None)
    lost = agent(server)
    assert lost is not None
    by_nixl, prompts = decode.log.count("transport=nixl"), itertools.count(1000 * lost, 10)
    os.kill(lost, number)

    def is_replaced() -> bool:
        pages_come_in_time(prefill, decode, cpu_server, PATH, next(prompts))
        return agent(server) not in (None, lost) and decode.log.count("transport=nixl") > by_nixl

    wait_until(is_replaced)
