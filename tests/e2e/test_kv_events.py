"""KV cache events of a real server, to a subscriber that knows vLLM's form alone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import zmq
from e2e_support import MODEL, TIMEOUT_S, wait_until

from firelane.bench.server import ServerProcess

PROMPT = list(range(100, 200))


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"ipc://{tmp_path_factory.mktemp('zmq')}/replay"


@pytest.fixture(scope="module")
def server(environ: dict[str, str], replay: str) -> Iterator[ServerProcess]:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": replay.replace("replay", "events"),
        "replay_endpoint": replay,
        "topic": "kv@pod@model",
    }
    options = ["--backend", "null", "--kv-events-config", json.dumps(config)]
    with ServerProcess(options, environ=environ) as started:
        yield started


def batches(replay: str) -> list[tuple[int, list[dict[str, Any]]]]:
    """All so far: number and events."""
    context: zmq.Context[Any] = zmq.Context()
    found: list[tuple[int, list[dict[str, Any]]]] = []
    with context, context.socket(zmq.DEALER) as ask:
        ask.set(zmq.RCVTIMEO, int(1000 * TIMEOUT_S))
        ask.connect(replay)
        ask.send_multipart([b"", (0).to_bytes(8, "big")])
        while (frames := ask.recv_multipart())[2]:
            ts, events, rank = msgspec.msgpack.decode(frames[2])
            assert ts > 0
            assert rank == 0
            found.append((int.from_bytes(frames[1], "big"), events))
    return found


def events_of(replay: str, kind: str) -> list[dict[str, Any]]:
    return [event for _, events in batches(replay) for event in events if event["type"] == kind]


def ask(server: ServerProcess, prompt: list[int], **fields: Any) -> None:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "ignore_eos": True, **fields}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S).raise_for_status()


def stored_tokens(replay: str) -> list[list[int]]:
    return [event["token_ids"] for event in events_of(replay, "BlockStored")]


def test_a_prompts_blocks_are_told_once(server: ServerProcess, replay: str) -> None:
    ask(server, PROMPT)
    wait_until(lambda: PROMPT[:96] in stored_tokens(replay))
    stored = next(e for e in events_of(replay, "BlockStored") if e["token_ids"] == PROMPT[:96])
    size, medium = stored["block_size"], stored["medium"]
    metrics = httpx.get(f"{server.url}/metrics", timeout=TIMEOUT_S).text
    assert f'block_size="{size}"' in metrics
    assert (medium, stored["parent_block_hash"], "extra_keys" in stored) == ("CPU", None, False)
    assert len(stored["block_hashes"]) == 96 // size
    other = [*PROMPT, *range(300, 340)]
    ask(server, other)
    wait_until(lambda: any(tokens[-20:] == other[108:128] for tokens in stored_tokens(replay)))
    later = events_of(replay, "BlockStored")[-1]
    assert later["parent_block_hash"] == stored["block_hashes"][-1]
    assert later["token_ids"] == other[96:128]


def test_salts_are_told_apart_and_never_told(server: ServerProcess, replay: str) -> None:
    prompt = list(range(500, 540))
    for salt in ("secret-one", "secret-two"):
        ask(server, prompt, cache_salt=salt)
    wait_until(lambda: stored_tokens(replay).count(prompt[:32]) == 2)
    first, second = (e for e in events_of(replay, "BlockStored") if e["token_ids"] == prompt[:32])
    assert first["extra_keys"][0] != second["extra_keys"][0]
    assert set(first["block_hashes"]).isdisjoint(second["block_hashes"])
    assert "secret" not in json.dumps([first, second])


def test_an_engine_that_starts_again_has_an_empty_cache(server: ServerProcess, replay: str) -> None:
    ask(server, PROMPT)
    before = len(events_of(replay, "AllBlocksCleared"))
    assert before >= 1
    (engine,) = server.engine_pids
    os.kill(engine, signal.SIGKILL)
    ask(server, list(range(700, 740)))
    wait_until(lambda: stored_tokens(replay)[-1] == list(range(700, 732)))
    found = batches(replay)
    assert [number for number, _ in found] == list(range(len(found)))
    assert len(events_of(replay, "AllBlocksCleared")) == before + 1
    ask(server, PROMPT)
    wait_until(lambda: stored_tokens(replay)[-1] == PROMPT[:96])
