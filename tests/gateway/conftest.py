"""A gateway on a real port of the loopback, in a thread of its own, in front of a scripted engine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tokenizers
import uvloop
from fake_engine import FakeEngine
from tokenizers import decoders, models, pre_tokenizers, processors

from firelane.gateway.config import GatewayConfig, HttpLimits, ModelConfig
from firelane.gateway.engines.link import EngineLink, LinkState
from firelane.gateway.engines.recovery import Recovery
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.models import ServedModel
from firelane.gateway.server import Gateway

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MODEL_FIELDS = {field.name for field in dataclasses.fields(ModelConfig)}
SPECIALS = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>"]


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Ids 0 to 4 are special; every byte is a token, so that a character may take four."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {name: i for i, name in enumerate([*SPECIALS, *alphabet])}
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in SPECIALS])
    core.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    return core


def write_model(path: Path, core: tokenizers.Tokenizer, template: str | None = TEMPLATE) -> Path:
    core.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>"}}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


@pytest.fixture(scope="session")
def core() -> tokenizers.Tokenizer:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def model_dir(core: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), core)


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Service:
    """A running gateway and its engine. `text` is what the engine answers; set it, `script` or the engine's
    fields.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        core: tokenizers.Tokenizer,
        config: GatewayConfig,
        recovery: Recovery | None = None,
    ) -> None:
        self.recovery = recovery
        self.loop = loop
        self.core = core
        self.text = "hello world"
        self.script: Callable[[list[int], Any], list[int]] | None = None
        self.config = config
        self.downs: list[str] = []
        self.call(self._start())
        self.url = f"http://127.0.0.1:{self.gateway.port}"
        self.http = httpx.Client(base_url=self.url, timeout=10, trust_env=False)
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key="k",
            max_retries=0,
            timeout=10,
            http_client=httpx.Client(trust_env=False, timeout=10),
        )

    async def _start(self) -> None:
        self.replica = EngineLink(on_down=self.downs.append)
        self.link = ReplicaSet([self.replica], self.recovery)
        self.engine = FakeEngine(self._answer, self.core.get_vocab_size())
        self.gateway = Gateway(self.config, [self.link])
        await self.gateway.start()
        await self.restart()

    @property
    def model(self) -> ServedModel:
        return self.gateway.services.models.default

    async def restart(self) -> None:
        await self.replica.attach(self.engine.connect())
        self.engine.send(self.engine.ready())
        while self.link.state is not LinkState.READY:
            await asyncio.sleep(0)

    def _answer(self, prompt: list[int], sampling: Any) -> list[int]:
        return self.script(prompt, sampling) if self.script else [*self.ids(self.text), 1]

    def ids(self, text: str) -> list[int]:
        return self.core.encode(text, add_special_tokens=False).ids

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        async def inner() -> Any:
            return function(*args)

        return self.call(inner())

    def wait_for(self, condition: Callable[[], bool]) -> None:
        async def poll() -> None:
            async with asyncio.timeout(5):
                while not condition():
                    await asyncio.sleep(0.001)

        self.call(poll())

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All JSON events of a stream; the last line must be [DONE]."""
        answer = self.http.post(path, json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def close(self) -> None:
        self.http.close()
        self.openai.close()
        self.call(self.gateway.close())
        self.run(self.engine.die)


@pytest.fixture
def make_service(
    loop: asyncio.AbstractEventLoop, core: tokenizers.Tokenizer, model_dir: Path
) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def make(*, recovery: Recovery | None = None, **changes: Any) -> Service:
        """changes: of ModelConfig and of GatewayConfig."""
        own: dict[str, Any] = {"model_dir": model_dir, "names": ("toy", "alias")}
        own |= {name: changes.pop(name) for name in MODEL_FIELDS & changes.keys()}
        values: dict[str, Any] = {"port": 0, "limits": HttpLimits(body_bytes=100_000)}
        config = GatewayConfig(models=(ModelConfig(**own),), **{**values, **changes})
        made.append(Service(loop, core, config, recovery))
        return made[-1]

    yield make
    for service in made:
        service.close()


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service()
