"""A gateway in a thread of its own, and the model that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import uvloop
from raw_client import Raw
from service import Service

from firelane.gateway import server
from firelane.gateway.config import GatewayConfig, HttpLimits, ModelConfig
from firelane.gateway.engines.recovery.recovery import Recovery
from firelane.text import prompt
from firelane.text.rendering.template_process import TemplateRenderer
from tests.text.toy_model import byte_tokenizer, write_model

MODEL_FIELDS = {field.name for field in dataclasses.fields(ModelConfig)}


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


@pytest.fixture(autouse=True)
def _no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine's speed, what is late is found when a test looks for it."""
    monkeypatch.setattr(server, "SWEEP_S", 3600.0)


class KeptRenderer(TemplateRenderer):
    """Processes that outlive the gateway that closes them."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="session")
def renderers() -> Iterator[dict[str, KeptRenderer]]:
    made: dict[str, KeptRenderer] = {}
    yield made
    for renderer in made.values():
        renderer.end()


@pytest.fixture(autouse=True)
def _processes_of_templates_are_kept(
    monkeypatch: pytest.MonkeyPatch, renderers: dict[str, KeptRenderer]
) -> None:
    """One process for all gateways of a template: to start it takes longer than most tests."""

    def kept(*given: Any, replaced: object, trials_dir: object) -> KeptRenderer:
        del replaced, trials_dir
        key = repr(given)
        if key not in renderers:
            renderers[key] = KeptRenderer(*given)
        return renderers[key]

    monkeypatch.setattr(prompt, "TemplateRenderer", kept)


@pytest.fixture
def make_service(
    loop: asyncio.AbstractEventLoop, core: tokenizers.Tokenizer, model_dir: Path
) -> Iterator[Callable[..., Service]]:
    def make(*, recovery: Recovery | None = None, **changes: Any) -> Service:
        """changes: of ModelConfig and of GatewayConfig; `tokens`: another tokenizer than `core`."""
        tokens = changes.pop("tokens", core)
        own: dict[str, Any] = {"model_dir": model_dir, "names": ("toy", "alias")}
        own |= {name: changes.pop(name) for name in MODEL_FIELDS & changes.keys()}
        values: dict[str, Any] = {"port": 0, "limits": HttpLimits(body_bytes=100_000)}
        config = GatewayConfig(models=(ModelConfig(**own),), **{**values, **changes})
        return made.enter_context(contextlib.closing(Service(loop, tokens, config, recovery)))

    with contextlib.ExitStack() as made:
        yield make


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    return make_service()


@pytest.fixture
def raw(service: Service) -> Iterator[Callable[[], Raw]]:
    """Opens plain connections to `service`."""
    clients: list[Raw] = []

    def connect() -> Raw:
        clients.append(Raw(service))
        return clients[-1]

    yield connect
    for client in clients:
        client.sock.close()
