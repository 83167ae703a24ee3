"""The worker with an engine process on the null backend, against stand-ins of Dynamo's types."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import dynamo_types
import pytest
from dynamo_types import Context, DisaggregationMode, EngineShutdown, Fields, InvalidArgument
from msgspec.structs import replace

from firelane.engine_config import EngineConfig
from firelane.node.remote_peers import RemotePeersConfig
from firelane.sources.resolve import EMBEDDED

TIMEOUT_S = 300.0
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a scenario with a worker of each mode; several of them exchange pages."""
    dynamo_types.install(monkeypatch)
    from firelane_dynamo.options import WorkerOptions
    from firelane_dynamo.worker import FirelaneEngine

    def in_loop(
        scenario: Callable[[Any], Coroutine[Any, Any, Any]],
        *modes: DisaggregationMode,
        **changes: Any,
    ) -> Any:
        engine = EngineConfig(
            **{"model_dir": EMBEDDED, "cache_dir": tmp_path, "backend": "null", "max_num_seqs": 4, **changes}
        )

        def worker(mode: DisaggregationMode) -> Any:
            peers = RemotePeersConfig("127.0.0.1", _free_port(), b"0123456789abcdef") if modes[1:] else None
            own = engine if peers is None else replace(engine, kv_transfer_address=peers.address(0))
            worker = Fields(model_name="m", served_model_name="name", disaggregation_mode=mode)
            return FirelaneEngine(
                WorkerOptions(engine=own, worker=worker, engine_timeout_s=60.0, peers=peers)
            )

        async def whole():
            made = [worker(mode) for mode in modes or (DisaggregationMode.AGGREGATED,)]
            try:
                return await asyncio.wait_for(scenario(*made), TIMEOUT_S)
            finally:
                for one in (*made, *made):
                    await one.cleanup()

        return asyncio.run(whole())

    return in_loop


def request(max_tokens: int = 4, **parts: Any) -> dict[str, Any]:
    return {"token_ids": [50, 51, 52], "stop_conditions": {"max_tokens": max_tokens}, **parts}


async def answer(worker: Any, asked: dict[str, Any], context: Context | None = None) -> list[int]:
    chunks = worker.generate(asked, context or Context())
    return [token async for chunk in chunks for token in chunk["token_ids"]]


def test_registration_and_answers(run) -> None:
    async def scenario(worker):
        published: list[Any] = []
        worker.attach_snapshot_publisher(Fields(publish=lambda _, snapshot: published.append(snapshot)))
        config = await worker.start(1)
        assert (config.model, config.served_model_name) == ("m", "name")
        assert config.llm.kv_cache_block_size == 16
        assert config.llm.max_num_seqs == 4
        same = await asyncio.gather(*(answer(worker, request(), Context("same")) for _ in range(3)))
        assert [len(tokens) for tokens in same] == [4, 4, 4]
        assert same[0] == same[1] == same[2]
        assert published[0].kv_total_blocks == config.llm.total_kv_blocks

    run(scenario)


def test_refused_requests(run) -> None:
    async def scenario(worker):
        await worker.start(1)
        for asked in (
            request(sampling_options={"temperature": -1.0}),
            request(token_ids=[10**6]),
            request(token_ids=[5] * 5000),
        ):
            with pytest.raises(InvalidArgument):
                await answer(worker, asked)
        assert len(await answer(worker, request())) == 4

    run(scenario)


def test_an_engine_that_dies_is_replaced_and_the_stream_goes_on(run) -> None:
    async def scenario(worker):
        await worker.start(1)
        whole = await answer(worker, request(600))
        chunks = worker.generate(request(600), Context())
        got = list((await anext(chunks))["token_ids"])
        os.kill(worker._engine.pid, signal.SIGKILL)
        got += [token async for chunk in chunks for token in chunk["token_ids"]]
        assert got == whole

    run(scenario, max_model_len=1024)


def test_abort_stops_the_sequences(run) -> None:
    async def scenario(worker):
        await worker.start(1)
        context = Context()
        chunks = worker.generate(request(100_000), context)
        await anext(chunks)
        await worker.abort(context)
        assert [chunk.get("finish_reason") async for chunk in chunks][-1] == "cancelled"
        assert worker._engine.replicas.in_flight == 0

    run(scenario, max_model_len=2048)


def test_a_reader_that_goes_away_stops_its_sequences_alone(run) -> None:
    async def scenario(worker):
        await worker.start(1)
        first, second = (worker.generate(request(1000), Context("same")) for _ in range(2))
        await anext(first)
        await anext(second)
        await first.aclose()
        assert [chunk.get("finish_reason") async for chunk in second][-1] == "length"
        assert worker._engine.replicas.in_flight == 0

    run(scenario, max_model_len=2048)


def test_prefill_hands_over_after_one_token(run) -> None:
    async def scenario(worker):
        await worker.start(1)
        (chunk,) = [chunk async for chunk in worker.generate(request(), Context())]
        assert len(chunk["token_ids"]) == 1
        assert chunk["disaggregated_params"] == {"engine": "firelane"}

    run(scenario, DisaggregationMode.PREFILL)


def test_decode_has_the_pages_of_prefill(run) -> None:
    """Pages that cannot be had are computed."""

    async def scenario(prefill, decode):
        await prefill.start(1)
        await decode.start(2)
        prompt = list(range(50, 150))
        asked = {"token_ids": prompt, "stop_conditions": {"max_tokens": 4}}
        (handed,) = [chunk async for chunk in prefill.generate(asked, Context())]
        said = handed["disaggregated_params"]
        assert len(said["kv_transfer_params"]["remote_block_ids"]) == len(prompt) // 16
        asked["prefill_result"] = {"disaggregated_params": said}
        whole = [chunk async for chunk in decode.generate(asked, Context())]
        assert whole[-1]["completion_usage"]["prompt_tokens_details"]["cached_tokens"] == 96
        assert whole[0]["token_ids"][:1] == handed["token_ids"]
        for wrong in ({"remote_engine_id": "gone"}, {"remote_port": "none"}):
            params = said["kv_transfer_params"] | wrong
            result = {"disaggregated_params": {"kv_transfer_params": params}}
            assert len(await answer(decode, request(prefill_result=result))) == 4

    run(scenario, DisaggregationMode.PREFILL, DisaggregationMode.DECODE)


def test_an_engine_that_cannot_start_says_why(run, tmp_path) -> None:
    async def scenario(worker):
        with pytest.raises(EngineShutdown, match=r"config\.json"):
            await worker.start(1)

    run(scenario, model_dir=tmp_path)


def test_without_an_engine_requests_go_to_other_workers(run, monkeypatch) -> None:
    """The worker ends itself, so that nobody routes to it."""
    killed: list[int] = []

    async def scenario(worker):
        await worker.start(1)
        monkeypatch.setattr(os, "kill", lambda _, number: killed.append(number))
        stuck = asyncio.ensure_future(answer(worker, request(100_000)))
        await asyncio.sleep(0)
        worker._engine._explain(None)
        with pytest.raises(EngineShutdown):
            await stuck
        with pytest.raises(EngineShutdown):
            await answer(worker, request())
        monkeypatch.undo()

    run(scenario)
    assert killed == [signal.SIGTERM]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
