"""Two servers, one for prefill and one for decode, driven as llm-d's sidecar drives a pair of vLLM's
(llm-d-router: pkg/sidecar/proxy/connector_nixlv2.go): the client gets what one server would have given."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_support import MODEL, TIMEOUT_S, metric

from firelane.bench.server import ServerProcess

TEXT = "import os\n\ndef walk(path):\n    for name in os.listdir(path):\n"
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "seed": 5, "ignore_eos": True}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "cluster"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    return path


def start(environ: dict[str, str], key_file: Path) -> ServerProcess:
    address = ["--kv-transfer-address", f"127.0.0.1:{free_port()}", "--cluster-key-file", str(key_file)]
    words = ["--threads", "1", "--max-num-seqs", "8", *address, "--kv-transfer-cipher", "on"]
    return ServerProcess(words, environ=environ)


@pytest.fixture(scope="module")
def servers(environ: dict[str, str], key_file: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """prefill, decode."""
    with start(environ, key_file) as prefill, start(environ, key_file) as decode:
        yield prefill, decode


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(server.url + path, json=body, timeout=TIMEOUT_S)
    answer.raise_for_status()
    return answer.json()


def prefilled(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The prefill leg, as the sidecar asks it."""
    params = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    leg = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": params}
    if "max_completion_tokens" in body:
        leg["max_completion_tokens"] = 1
    return post(server, path, leg)


def request(number: int, path: str) -> dict[str, Any]:
    prompt = f"# {number}\n{TEXT * 10}"
    if path == "/v1/completions":
        return {**BODY, "prompt": prompt, "logprobs": 2}
    return {**BODY, "messages": [{"role": "user", "content": prompt}]}


def pages_come_in_time(
    prefill: ServerProcess, decode: ServerProcess, whole: ServerProcess, path: str, first: int
) -> None:
    """Both legs of some prompt, with the answer that a whole server gives. Pages that take longer than
    computing them would, as on a busy machine, are computed: the answer is the same, and another prompt may
    be in time."""
    for number in range(first, first + 10):
        body = request(number, path)
        expected = post(whole, path, body)
        params = prefilled(prefill, path, body)["kv_transfer_params"]
        assert params["do_remote_prefill"] is True
        assert params["do_remote_decode"] is False
        assert params["remote_host"] == "127.0.0.1"
        assert len(params["remote_block_ids"]) >= 4
        answer = post(decode, path, {**body, "kv_transfer_params": params})
        assert answer["choices"] == expected["choices"]
        assert "kv_transfer_params" not in answer
        usage = answer["usage"]
        if usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] // 2:
            return
    raise AssertionError("no prompt's pages came in time")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_decode_leg_goes_on_with_the_pages(
    servers: tuple[ServerProcess, ServerProcess], cpu_server: ServerProcess, path: str
) -> None:
    prefill, decode = servers
    before = metric(decode.url, "firelane:kv_pulled_bytes_total")
    pages_come_in_time(prefill, decode, cpu_server, path, 100 * len(path))
    assert metric(decode.url, "firelane:kv_pulled_bytes_total") > before


def test_whatever_is_wrong_is_computed(
    servers: tuple[ServerProcess, ServerProcess], cpu_server: ServerProcess
) -> None:
    prefill, decode = servers
    path, pulled = "/v1/completions", metric(decode.url, "firelane:kv_pulled_bytes_total")
    good = prefilled(prefill, path, request(20, path))["kv_transfer_params"]
    wrong = (
        {"remote_port": free_port()},
        {"remote_engine_id": "another life"},
        {"remote_host": "8.8.8.8"},
        {"remote_host": "router.example"},
        {"remote_engine_id": None},
    )
    for number, changes in enumerate(wrong, 30):
        body = request(number, path)
        expected = post(cpu_server, path, body)
        answer = post(decode, path, {**body, "kv_transfer_params": {**good, **changes}})
        assert answer["choices"] == expected["choices"], changes
    assert metric(decode.url, "firelane:kv_pulled_bytes_total") == pulled
    plain = post(cpu_server, path, {**request(20, path), "kv_transfer_params": good})
    assert plain["choices"] == post(decode, path, request(20, path))["choices"]


def test_a_dead_prefill_server_costs_no_answer(
    servers: tuple[ServerProcess, ServerProcess], cpu_server: ServerProcess
) -> None:
    prefill, decode = servers
    path = "/v1/completions"
    body = request(40, path)
    expected = post(cpu_server, path, body)
    params = prefilled(prefill, path, body)["kv_transfer_params"]
    for pid in prefill.engine_pids:
        os.kill(pid, signal.SIGKILL)
    answer = post(decode, path, {**body, "kv_transfer_params": params})
    assert answer["choices"] == expected["choices"]
