"""Weights that change under load: a real server takes another version of its model."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from firelane.bench.server import ServerProcess, descendants
from tests.e2e.test_adapters_client import ASK, is_engine
from tests.models.families import make_checkpoint

Connect = Callable[[ServerProcess], openai.OpenAI]
LONG = {**ASK, "max_tokens": 200, "seed": 5, "temperature": 0.8, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models with one tokenizer, and other weights."""
    from safetensors.numpy import load_file, save_file

    root = tmp_path_factory.mktemp("versions")
    first = make_checkpoint("llama3", "float32", root / "first")
    second = make_checkpoint("llama3", "float32", root / "second")
    tensors = load_file(second / "model.safetensors")
    save_file({name: tensor[::-1].copy() for name, tensor in tensors.items()}, second / "model.safetensors")
    return {"first": first, "second": second}


@pytest.fixture
def server(environ: dict[str, str], versions: dict[str, Path]) -> Iterator[ServerProcess]:
    words = [str(versions["first"]), "--served-model-name", "m", "--max-num-seqs", "4"]
    with ServerProcess([*words, "--kv-cache-gib", "0.1"], environ=environ) as started:
        yield started


def update(server: ServerProcess, source: Path, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{server.url}/admin/models/m/update", json={"source": str(source), **fields}, timeout=120
    )


def answer(client: openai.OpenAI) -> tuple[str, str | None]:
    found = client.chat.completions.create(model="m", **LONG)
    return found.choices[0].message.content or "", found.system_fingerprint


def engines(server: ServerProcess) -> list[int]:
    return [pid for pid in descendants(server.process.pid) if is_engine(pid)]


def test_new_requests_get_the_new_version(
    server: ServerProcess, connect: Connect, versions: dict[str, Path]
) -> None:
    """Requests that run all the time are computed by one version each, byte for byte, and none fails."""
    client = connect(server)
    old = answer(client)
    found: list[tuple[str, str | None]] = []
    over = threading.Event()

    def ask() -> None:
        own = connect(server).with_options(max_retries=0)
        while not over.is_set():
            pieces, prints = list[str](), set[str | None]()
            for chunk in own.chat.completions.create(model="m", stream=True, **LONG):
                pieces.append(chunk.choices[0].delta.content or "")
                prints.add(chunk.system_fingerprint)
            (fingerprint,) = prints
            found.append(("".join(pieces), fingerprint))

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            report = update(server, versions["second"], version="second")
        finally:
            over.set()
        for one in asking:
            one.result()
    assert report.status_code == 200, report.text
    new = answer(client)
    assert new[0] != old[0]
    assert new[1] == f"{old[1]}_second"
    assert set(found) <= {old, new}
    assert old in found
    body = report.json()
    assert body == {"model": "m", "version": "second", "system_fingerprint": new[1], "before": old[1]}
    deadline_s = time.monotonic() + 30
    while len(engines(server)) > 1 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert len(engines(server)) == 1
    assert answer(client) == new
    assert [card["id"] for card in httpx.get(f"{server.url}/v1/models").json()["data"]] == ["m"]


def test_what_cannot_be_served_changes_nothing(
    server: ServerProcess, connect: Connect, versions: dict[str, Path], tmp_path: Path
) -> None:
    client = connect(server)
    before = answer(client)
    broken = make_checkpoint("llama3", "float32", tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\xff" * 64)
    unknown = make_checkpoint("llama3", "float32", tmp_path / "unknown")
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))
    for source, status in ((broken, 503), (unknown, 503), (tmp_path / "nowhere", 400)):
        found = update(server, source)
        assert found.status_code == status, found.text
        assert "m stays as it is" in found.text
    assert update(server, versions["second"], version="no spaces").status_code == 400
    assert answer(client) == before
    assert len(engines(server)) == 1
    assert update(server, versions["second"]).json()["version"] == "2"
    assert answer(client)[0] != before[0]


def test_the_next_engine_has_the_new_version(
    server: ServerProcess, connect: Connect, versions: dict[str, Path]
) -> None:
    client = connect(server)
    assert update(server, versions["second"], version="b").status_code == 200
    want = answer(client)
    deadline_s = time.monotonic() + 30
    while len(engines(server)) > 1 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    (engine,) = engines(server)
    os.kill(engine, signal.SIGKILL)
    assert answer(client) == want


def test_several_gateways_refuse_it(environ: dict[str, str], versions: dict[str, Path]) -> None:
    words = [str(versions["first"]), "--served-model-name", "m", "--backend", "null", "--gateways", "2"]
    with ServerProcess(words, environ=environ) as started:
        found = update(started, versions["second"])
        assert found.status_code == 400
        assert "several gateway processes" in found.text


def test_requests_wait_while_it_is_paused(
    server: ServerProcess, connect: Connect, versions: dict[str, Path]
) -> None:
    """Requests that come in a pause get the version that there is when it ends."""
    client = connect(server)
    old = answer(client)
    assert httpx.post(f"{server.url}/pause?mode=keep").status_code == 400
    assert httpx.post(f"{server.url}/pause?mode=wait", timeout=60).json() == {"is_paused": True}
    assert httpx.get(f"{server.url}/is_paused").json() == {"is_paused": True}
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(answer, connect(server)) for _ in range(2)]
        assert update(server, versions["second"], version="b").status_code == 200
        assert not any(one.done() for one in waiting)
        assert httpx.post(f"{server.url}/resume").json() == {"is_paused": False}
        found = {one.result() for one in waiting}
    assert found == {answer(client)}
    assert found != {old}


def test_a_pause_may_end_what_runs(server: ServerProcess, connect: Connect) -> None:
    client = connect(server).with_options(max_retries=0)
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(client.chat.completions.create, model="m", n=64, **LONG)
        while httpx.get(f"{server.url}/load").json()["server_load"] == 0:
            assert not many.done()
        assert httpx.post(f"{server.url}/pause", timeout=60).status_code == 200
        with pytest.raises(openai.ConflictError, match="paused"):
            many.result()
    assert httpx.post(f"{server.url}/resume").status_code == 200
    assert answer(client)[0]
