"""A gateway on a real port of the loopback, in front of a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import openai
import tokenizers
from fake_engine import FakeEngine

from firelane.engine_state import EngineEvent, LinkState, Lost
from firelane.gateway.config import GatewayConfig
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import Recovery
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.server import Gateway
from firelane.wire.cache_events import CacheEvents

PATIENCE_S = 60.0
"""Until a wait is given up: long, since a loaded machine is slow and a test that passes waits for less."""


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
        self.on_down: Callable[[], object] = lambda: None
        self.call(self._start())
        self.url = f"http://127.0.0.1:{self.gateway.port}"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key="k",
            max_retries=0,
            timeout=PATIENCE_S,
            http_client=httpx.Client(trust_env=False, timeout=PATIENCE_S),
        )

    async def _start(self) -> None:
        self.replica = EngineLink(tell=self._hear)
        self.link = ReplicaSet([self.replica], self.recovery)
        self.engine = FakeEngine(self._answer, self.core.get_vocab_size())
        self.gateway = Gateway(self.config, [self.link])
        await self.gateway.start()
        await self.restart()

    def _hear(self, _: EngineLink, event: EngineEvent | CacheEvents) -> None:
        if isinstance(event, Lost):
            self.downs.append(event.reason)
            self.on_down()

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
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        async def inner() -> Any:
            return function(*args)

        return self.call(inner())

    def wait_for(self, condition: Callable[[], bool]) -> None:
        async def poll() -> None:
            async with asyncio.timeout(PATIENCE_S):
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
        """All that it holds, even where some of it does not close."""
        with contextlib.ExitStack() as held:
            held.callback(self.run, self.engine.die)
            held.callback(lambda: self.call(self.gateway.close()))
            held.callback(self.openai.close)
            held.callback(self.http.close)
