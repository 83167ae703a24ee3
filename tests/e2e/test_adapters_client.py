"""Adapters of a real server: names, listed and asked for, and pages that no other name shares."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import save_file

from firelane.bench.server import ServerProcess, descendants
from firelane.gateway.tenants.keyfile import hashed
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.program.adapters import adaptable_modules
from tests.models.families import make_checkpoint

Connect = Callable[[ServerProcess], openai.OpenAI]
RANK = 4
KEY = "a-key-that-is-long-enough-for-a-server"
ASK = {
    "messages": [{"role": "user", "content": "Say something of rivers and of woods."}],
    "max_tokens": 12,
}


def write_adapter(path: Path, modules: dict[str, tuple[int, int]], seed: int, **config: Any) -> Path:
    """Factors strong enough to change what is drawn."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for module, (n, k) in modules.items():
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = rng.standard_normal((RANK, k), np.float32) * np.float32(k**-0.5)
        tensors[f"{name}.lora_B.weight"] = rng.standard_normal((n, RANK), np.float32)
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, **config})
    )
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", "float32", tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    modules, path = adaptable_modules(load_program(read_config(model))), tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(path / name, dict(modules), seed) for seed, name in enumerate(("one", "two"))}


def options(adapters: dict[str, Path]) -> list[str]:
    return [word for name, path in adapters.items() for word in ("--lora", f"{name}={path}")]


@pytest.fixture(scope="module")
def server(environ: dict[str, str], model: Path, adapters: dict[str, Path]) -> Iterator[ServerProcess]:
    arguments = [str(model), "--backend", "null", "--max-num-seqs", "4", *options(adapters)]
    with ServerProcess(arguments, environ=environ) as started:
        yield started


def test_adapters_are_listed_below_their_model(server: ServerProcess, connect: Connect) -> None:
    listed = {card.id: card for card in connect(server).models.list()}
    assert list(listed) == ["base", "one", "two"]
    assert [card.to_dict()["parent"] for card in listed.values()] == [None, "base", "base"]
    assert listed["two"].to_dict()["root"] == "two"


def test_pages_are_those_of_one_adapter(server: ServerProcess, connect: Connect) -> None:
    """A prompt that one name has had is new to the others."""
    client = connect(server)
    for name in ("base", "one", "two"):
        for known in (False, True):
            answer = client.chat.completions.create(model=name, **ASK)
            assert answer.model == name
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            assert (answer.usage.prompt_tokens_details.cached_tokens > 0) == known


def test_names_that_are_no_adapters(server: ServerProcess, connect: Connect) -> None:
    with pytest.raises(openai.NotFoundError, match="three"):
        connect(server).chat.completions.create(model="three", **ASK)
    with pytest.raises(openai.BadRequestError, match="one is an adapter"):
        connect(server).embeddings.create(model="one", input="hi")


REFUSED = {
    "nothing there": (["--lora", "x=/nowhere/at/all"], "--lora x: /nowhere/at/all"),
    "a name twice": (["--lora", "base={one}"], "the name 'base' is given twice"),
    "too large a rank": (["--lora", "x={one}", "--max-lora-rank", "2"], "raise --max-lora-rank"),
    "two models": (["--lora", "x={one}", "--model", "b={base}"], "--lora is for one model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_start_that_is_refused(
    environ: dict[str, str], model: Path, adapters: dict[str, Path], name: str
) -> None:
    words, message = REFUSED[name]
    filled = [word.format(one=adapters["one"], base=model) for word in words]
    with pytest.raises(Exception, match=message):
        ServerProcess([str(model), "--backend", "null", *filled], environ=environ).stop()


def test_an_adapter_of_another_base(environ: dict[str, str], model: Path, tmp_path: Path) -> None:
    other = write_adapter(tmp_path / "x", {"model.layers.7.self_attn.q_proj": (12, 10)}, 1)
    with pytest.raises(Exception, match="this model has no such product"):
        ServerProcess([str(model), "--backend", "null", "--lora", f"x={other}"], environ=environ).stop()


def test_keys_may_be_for_some_adapters_alone(
    environ: dict[str, str], model: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[tenants.t]\nkeys = ["{hashed(KEY)}"]\nmodels = ["two"]\n')
    words = [str(model), "--backend", "null", "--api-keys", str(keys), *options(adapters)]
    with ServerProcess(words, environ=environ) as started:
        head = {"authorization": f"Bearer {KEY}"}
        listed = httpx.get(f"{started.url}/v1/models", headers=head).json()["data"]
        assert [card["id"] for card in listed] == ["two"]
        for name, status in (("one", 404), ("base", 404), ("two", 200)):
            body = {"model": name, **ASK}
            answer = httpx.post(f"{started.url}/v1/chat/completions", json=body, headers=head)
            assert answer.status_code == status


@pytest.fixture(scope="module")
def computing(environ: dict[str, str], model: Path, adapters: dict[str, Path]) -> Iterator[ServerProcess]:
    with ServerProcess([str(model), "--max-num-seqs", "8", *options(adapters)], environ=environ) as started:
        yield started


def text(client: openai.OpenAI, name: str, seed: int = 1, tokens: int = 60) -> str:
    body = {**ASK, "max_tokens": tokens, "seed": seed, "temperature": 0.8}
    answer = client.chat.completions.create(model=name, extra_body={"ignore_eos": True}, **body)
    return answer.choices[0].message.content or ""


def test_adapters_change_answers_and_company_does_not(computing: ServerProcess, connect: Connect) -> None:
    client = connect(computing)
    alone = {(name, seed): text(client, name, seed) for name in ("base", "one", "two") for seed in (1, 2)}
    assert len(set(alone.values())) == len(alone)
    with ThreadPoolExecutor(len(alone)) as pool:
        found = dict(zip(alone, pool.map(lambda asked: text(client, *asked), alone), strict=True))
    assert found == alone


def test_an_adapter_goes_on_with_another_engine(computing: ServerProcess, connect: Connect) -> None:
    """The engine is killed under streams of two adapters and of the model itself."""
    client, names = connect(computing), ("base", "one", "two")
    want = {name: text(client, name, 5, 120) for name in names}
    killed = threading.Event()

    def streamed(name: str) -> str:
        pieces: list[str] = []
        body = {**ASK, "max_tokens": 120, "seed": 5, "temperature": 0.8, "stream": True}
        for chunk in client.chat.completions.create(model=name, extra_body={"ignore_eos": True}, **body):
            pieces.append(chunk.choices[0].delta.content or "")
            if len(pieces) == 5 and name == "two":
                (engine,) = [pid for pid in descendants(computing.process.pid) if is_engine(pid)]
                os.kill(engine, signal.SIGKILL)
                killed.set()
        return "".join(pieces)

    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(names, pool.map(streamed, names), strict=True))
    assert killed.is_set()
    assert found == want


def is_engine(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"firelane.engine\0" in command and os.getpgid(pid) == pid
    except OSError:
        return False
