"""The engine of Ray Serve LLM with a real server on the null backend, against stand-ins of Ray's types."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray_types
from ray_types import ErrorResponse, Model

from firelane.cli import build_parser
from firelane.errors import EngineDeadError, MachineError

TIMEOUT_S = 300.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Makes an engine of engine_kwargs."""
    ray_types.install(monkeypatch)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "integrations/ray")]))
    monkeypatch.setenv("FIRELANE_CACHE_DIR", str(tmp_path))
    from firelane_ray.engine import FirelaneEngine

    def engine(**options: Any) -> FirelaneEngine:
        loading = SimpleNamespace(model_id="name", model_source=str(ROOT / "firelane/models/embedded"))
        return FirelaneEngine(SimpleNamespace(model_loading_config=loading, engine_kwargs=options))

    return engine


def request(**fields: Any) -> Model:
    return Model(model="name", max_tokens=4, ignore_eos=True, request_id="of Ray", **fields)


async def all_of(answers: Any) -> list[Any]:
    return [answer async for answer in answers]


def test_answers_streams_and_refusals(make) -> None:
    async def scenario():
        engine = make(backend="null", max_num_seqs=4)
        try:
            await asyncio.wait_for(engine.start(), TIMEOUT_S)
            await engine.check_health()
            (answer,) = await all_of(engine.completions(request(prompt=[50, 51])))
            assert answer.usage["completion_tokens"] == 4
            messages = [{"role": "user", "content": "hi"}]
            events = await all_of(engine.chat(request(messages=messages, stream=True)))
            assert events[-1] == "data: [DONE]\n\n"
            assert all(event.startswith("data: {") for event in events[:-1])
            (tokens,) = await all_of(engine.tokenize(Model(model="name", prompt="abc")))
            (text,) = await all_of(engine.detokenize(Model(model="name", tokens=tokens.tokens)))
            assert text.prompt.endswith("abc")
            (refusal,) = await all_of(engine.completions(request(prompt=[10**6])))
            assert isinstance(refusal, ErrorResponse)
            assert refusal.error.code == 400
            (refusal,) = await all_of(engine.chat(request(messages=[], stream=True)))
            assert refusal.error.code == 400
            (refusal,) = await all_of(engine.transcriptions(None))
            assert refusal.error.code == 501
            engine._process._process.kill()
            await engine._process._process.wait()
            with pytest.raises(EngineDeadError):
                await engine.check_health()
            (refusal,) = await all_of(engine.completions(request(prompt=[50])))
            assert refusal.error.code == 503
        finally:
            await engine.shutdown()
            await engine.shutdown()

    asyncio.run(scenario())


def test_a_server_that_does_not_start_says_why(make) -> None:
    async def scenario():
        engine = make(max_num_sequences=4)
        with pytest.raises(MachineError, match="max-num-sequences"):
            await asyncio.wait_for(engine.start(), TIMEOUT_S)
        with pytest.raises(EngineDeadError, match="max-num-sequences"):
            await engine.check_health()
        await engine.shutdown()

    asyncio.run(scenario())


def test_options_of_a_page_exchange_reach_the_server(make) -> None:
    del make
    from firelane_ray.server_process import options_of

    exchange = {"kv_transfer_address": "10.0.0.7:5600", "kv_transport": "nixl", "cluster_key_file": "key"}
    given = build_parser().parse_args(["serve", "MODEL", *options_of(exchange)])
    assert (given.kv_transfer_address, given.kv_transport) == ("10.0.0.7:5600", "nixl")
    assert given.cluster_key_file == Path("key")


def test_the_deployment_names_the_engine(make) -> None:
    del make
    from firelane_ray.deployment import FirelaneServer
    from firelane_ray.engine import FirelaneEngine

    async def made():
        server = FirelaneServer.__new__(FirelaneServer)
        await server.__init__("config")
        return server

    assert asyncio.run(made()).options == {"engine_cls": FirelaneEngine}
    config = SimpleNamespace(deployment_config={"num_replicas": 2}, runtime_env={"env_vars": {"A": "b"}})
    options = FirelaneServer.get_deployment_options(config)
    assert options == {"num_replicas": 2, "ray_actor_options": {"runtime_env": {"env_vars": {"A": "b"}}}}
    assert config.deployment_config == {"num_replicas": 2}


STARTER = """
import subprocess, sys
command = "-m firelane_ray.child serve --backend null --port 0"
child = subprocess.Popen([sys.executable, *command.split()])
print(child.pid, flush=True)
child.wait()
"""


def test_a_server_ends_with_the_process_that_started_it(make) -> None:
    del make
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert starter.stdout is not None
    assert starter.stderr is not None
    pid = int(starter.stdout.readline())
    while b"serving" not in (line := starter.stderr.readline()):
        assert line, "the server has ended"
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    deadline_s = time.monotonic() + TIMEOUT_S
    while _is_running(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    starter.stdout.close()
    starter.stderr.close()


def _is_running(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False
