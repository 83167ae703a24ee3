"""Adapters that a real server loads and gives up while it serves."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from firelane.bench.server import ServerProcess, descendants
from firelane.gateway.tenants.keyfile import hashed
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.adapters import adaptable_modules
from tests.e2e.test_adapters_client import ASK, KEY, is_engine, text, write_adapter
from tests.models.families import make_checkpoint

Connect = Callable[[ServerProcess], openai.OpenAI]
USER_KEY = "the-key-of-one-that-is-no-admin"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", "float32", tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def modules(model: Path) -> dict[str, tuple[int, int]]:
    return dict(adaptable_modules(load_program(read_config(model))))


@pytest.fixture(scope="module")
def adapters(
    modules: dict[str, tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(path / name, modules, seed) for seed, name in enumerate(("one", "two", "three"))
    }


@pytest.fixture(scope="module")
def computing(environ: dict[str, str], model: Path, adapters: dict[str, Path]) -> Iterator[ServerProcess]:
    words = [str(model), "--max-num-seqs", "8", "--lora", f"one={adapters['one']}", "--max-loras", "2"]
    with ServerProcess(words, environ=environ) as started:
        yield started


@pytest.fixture
def server(computing: ServerProcess) -> Iterator[ServerProcess]:
    """With the adapters of its start alone."""
    yield computing
    for name in set(names(computing)) - {"base", "one"}:
        unload(computing, name)


def load(server: ServerProcess, name: str, path: Path, **fields: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path), **fields}
    return httpx.post(f"{server.url}/v1/load_lora_adapter", json=body, timeout=60)


def unload(server: ServerProcess, name: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)


def names(server: ServerProcess) -> list[str]:
    return [card["id"] for card in httpx.get(f"{server.url}/v1/models").json()["data"]]


def test_an_adapter_comes_and_goes(
    server: ServerProcess, connect: Connect, adapters: dict[str, Path]
) -> None:
    client = connect(server)
    before = text(client, "base")
    with pytest.raises(openai.NotFoundError):
        text(client, "two")
    answer = load(server, "two", adapters["two"])
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'two' added successfully.")
    assert names(server) == ["base", "one", "two"]
    adapted = text(client, "two")
    assert len({before, adapted, text(client, "one")}) == 3
    assert unload(server, "two").text == "Success: LoRA adapter 'two' removed successfully."
    assert names(server) == ["base", "one"]
    with pytest.raises(openai.NotFoundError, match="two"):
        text(client, "two")
    assert load(server, "again", adapters["two"]).status_code == 200
    assert text(client, "again") == adapted
    assert text(client, "base") == before


def test_what_is_refused_changes_nothing(
    server: ServerProcess, connect: Connect, adapters: dict[str, Path], tmp_path: Path
) -> None:
    other = write_adapter(tmp_path / "other", {"model.layers.7.self_attn.q_proj": (12, 10)}, 1)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    shutil.copy(adapters["two"] / "adapter_config.json", pickled)
    (pickled / "adapter_model.bin").write_bytes(b"x")
    broken = Path(shutil.copytree(adapters["two"], tmp_path / "broken"))
    (broken / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    pipe = Path(shutil.copytree(adapters["two"], tmp_path / "pipe"))
    (pipe / "adapter_config.json").unlink()
    os.mkfifo(pipe / "adapter_config.json")
    for path, words in (
        (other, "no such product"),
        (pickled, "may run code"),
        (broken, "adapter_model.safetensors"),
        (pipe, "not a regular file"),
        (tmp_path / "nowhere", "No such file"),
        (Path("relative"), "full path"),
    ):
        answer = load(server, "x", path)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]["message"]
        assert "/adapters/" not in answer.json()["error"]["message"].replace(str(path), "")
    assert load(server, "one", adapters["two"]).status_code == 400
    assert load(server, "base", adapters["two"]).status_code == 400
    assert unload(server, "nobody").status_code == 404
    assert names(server) == ["base", "one"]
    assert load(server, "two", adapters["two"]).status_code == 200
    full = load(server, "three", adapters["three"])
    assert full.status_code == 400
    assert "--max-loras" in full.json()["error"]["message"]
    text(connect(server), "two")


def test_other_contents_have_other_pages(
    server: ServerProcess, connect: Connect, modules: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    client = connect(server)
    first, second = (write_adapter(tmp_path / str(seed), modules, seed) for seed in (11, 12))

    def cached() -> int:
        usage = client.chat.completions.create(model="x", **ASK).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert load(server, "x", first).status_code == 200
    assert cached() == 0
    assert cached() > 0
    of_first = text(client, "x")
    assert load(server, "x", second, load_inplace=True).status_code == 200
    assert cached() == 0
    assert text(client, "x") != of_first
    assert load(server, "x", first, load_inplace=True).status_code == 200
    assert text(client, "x") == of_first
    assert names(server) == ["base", "one", "x"]


def test_requests_end_on_the_adapter_that_they_began_with(
    server: ServerProcess, connect: Connect, adapters: dict[str, Path]
) -> None:
    """It is unloaded, and another one comes, while a stream runs."""
    client = connect(server)
    assert load(server, "two", adapters["two"]).status_code == 200
    want = text(client, "two", 5, 150)
    pieces: list[str] = []
    body = {**ASK, "max_tokens": 150, "seed": 5, "temperature": 0.8, "stream": True}
    for chunk in client.chat.completions.create(model="two", extra_body={"ignore_eos": True}, **body):
        pieces.append(chunk.choices[0].delta.content or "")
        if len(pieces) == 5:
            assert unload(server, "two").status_code == 200
            load(server, "three", adapters["three"])
    assert "".join(pieces) == want


def test_the_next_engine_has_the_same_adapters(
    server: ServerProcess, connect: Connect, adapters: dict[str, Path], tmp_path: Path
) -> None:
    """The engine is killed under a stream, and the adapter's own files have gone."""
    client = connect(server)
    path = Path(shutil.copytree(adapters["two"], tmp_path / "two"))
    assert load(server, "two", path).status_code == 200
    shutil.rmtree(path)
    want = text(client, "two", 5, 120)
    pieces: list[str] = []
    killed = threading.Event()
    body = {**ASK, "max_tokens": 120, "seed": 5, "temperature": 0.8, "stream": True}
    for chunk in client.chat.completions.create(model="two", extra_body={"ignore_eos": True}, **body):
        pieces.append(chunk.choices[0].delta.content or "")
        if len(pieces) == 5:
            (engine,) = [pid for pid in descendants(server.process.pid) if is_engine(pid)]
            os.kill(engine, signal.SIGKILL)
            killed.set()
    assert killed.is_set()
    assert "".join(pieces) == want
    assert names(server) == ["base", "one", "two"]


def test_lora_path_names_an_adapter(server: ServerProcess, connect: Connect) -> None:
    client = connect(server)
    body: dict[str, Any] = {**ASK, "seed": 1, "temperature": 0.8}

    def said(name: str, **extra: Any) -> str:
        answer = client.chat.completions.create(model=name, extra_body=extra, **body)
        return answer.choices[0].message.content or ""

    assert said("base", lora_path="one") == said("one") == said("one", lora_path="one")
    assert said("base", lora_path="one") != said("base")
    with pytest.raises(openai.NotFoundError, match="nobody"):
        said("base", lora_path="nobody")


def test_forms_of_other_servers(server: ServerProcess, adapters: dict[str, Path]) -> None:
    body = {"lora_name": "two", "lora_path": str(adapters["two"])}
    answer = httpx.post(f"{server.url}/load_lora_adapter", json=body, timeout=60)
    assert answer.json() == {"success": True, "loaded_adapters": {"one": "one", "two": "two"}}
    assert httpx.get(f"{server.url}/lora-adapters").json() == [
        {"id": 0, "path": "one", "scale": 1.0},
        {"id": 1, "path": "two", "scale": 1.0},
    ]
    answer = httpx.post(f"{server.url}/unload_lora_adapter", json={"lora_name": "two"}, timeout=60)
    assert answer.json() == {"success": True, "loaded_adapters": {"one": "one"}}


def test_without_room_or_right(
    environ: dict[str, str], model: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        f'[tenants.a]\nkeys = ["{hashed(KEY)}"]\nadmin = true\n[tenants.u]\nkeys = ["{hashed(USER_KEY)}"]\n'
    )
    words = [str(model), "--backend", "null", "--api-keys", str(keys)]
    with ServerProcess(words, environ=environ) as started:
        body = {"lora_name": "x", "lora_path": str(adapters["one"])}
        for key, status in ((USER_KEY, 403), (KEY, 400), ("nobody's", 401)):
            head = {"authorization": f"Bearer {key}"}
            answer = httpx.post(f"{started.url}/v1/load_lora_adapter", json=body, headers=head)
            assert answer.status_code == status, answer.text
        assert (
            "--max-loras"
            in httpx.post(
                f"{started.url}/v1/load_lora_adapter", json=body, headers={"authorization": f"Bearer {KEY}"}
            ).text
        )


def test_several_gateways_and_replicas(
    environ: dict[str, str], model: Path, adapters: dict[str, Path]
) -> None:
    """Any process may be asked, and all know of it."""
    words = [str(model), "--backend", "null", "--gateways", "2", "--replicas", "2", "--max-loras", "2"]
    with ServerProcess(words, environ=environ) as started:
        assert load(started, "two", adapters["two"]).status_code == 200
        for _ in range(8):
            assert names(started) == ["base", "two"]
            answer = httpx.post(f"{started.url}/v1/chat/completions", json={"model": "two", **ASK})
            assert answer.status_code == 200, answer.text
        for engine in [pid for pid in descendants(started.process.pid) if is_engine(pid)]:
            os.kill(engine, signal.SIGKILL)
        answer = httpx.post(f"{started.url}/v1/chat/completions", json={"model": "two", **ASK}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert unload(started, "two").status_code == 200
        assert {tuple(names(started)) for _ in range(8)} == {("base",)}
