"""Files and batches with the openai client, on the embedded model; a server that is killed in the middle."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from e2e_support import MODEL, TIMEOUT_S, wait_until

from firelane.bench.server import ServerProcess

CHAT = "/v1/chat/completions"
Connect = Callable[[ServerProcess], openai.OpenAI]


def line(number: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"Tell me about number {number}."}
    body = {"model": MODEL, "messages": [message], "max_tokens": 8, "seed": number} | fields
    return {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return path


def start(client: openai.OpenAI, path: Path, endpoint: Any = CHAT) -> str:
    with path.open("rb") as file:
        source = client.files.create(file=file, purpose="batch")
    assert client.files.wait_for_processing(source.id).status == "processed"
    made = client.batches.create(input_file_id=source.id, endpoint=endpoint, completion_window="24h")
    return made.id


def wait(client: openai.OpenAI, batch_id: str) -> Any:
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        batch = client.batches.retrieve(batch_id)
        if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
            return batch
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.05)


def results(client: openai.OpenAI, file_id: str) -> dict[str, Any]:
    entries = [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
    found = {entry["custom_id"]: entry["response"] for entry in entries}
    assert len(found) == len(entries)
    return found


def wait_for_progress(client: openai.OpenAI, batch_id: str, completed: int) -> None:
    wait_until(lambda: client.batches.retrieve(batch_id).request_counts.completed >= completed)


@pytest.fixture(scope="module")
def server(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    data_dir = tmp_path_factory.mktemp("data")
    with ServerProcess(["--data-dir", str(data_dir), "--max-num-seqs", "16"], environ=environ) as started:
        yield started


def test_answers_are_those_of_the_same_requests_alone(
    server: ServerProcess, connect: Connect, tmp_path: Path
) -> None:
    client = connect(server)
    batch = wait(client, start(client, write(tmp_path / "in.jsonl", [line(i) for i in range(24)])))
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed) == (24, 24)
    found = results(client, batch.output_file_id)
    assert sum(r["body"]["usage"]["total_tokens"] for r in found.values()) == batch.usage.total_tokens
    for number in (0, 11, 23):
        alone = client.chat.completions.create(**line(number)["body"])
        answer = found[f"line-{number}"]["body"]["choices"][0]["message"]["content"]
        assert answer == alone.choices[0].message.content


@pytest.mark.parametrize(
    ("endpoint", "body", "look"),
    [
        ("/v1/completions", {"prompt": "one two", "max_tokens": 4}, lambda b: b["choices"][0]["text"]),
        ("/v1/embeddings", {"input": ["one", "two"]}, lambda b: b["data"][1]["embedding"]),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16}, lambda b: b["output"][0]["content"]),
    ],
)
def test_each_endpoint(
    server: ServerProcess, connect: Connect, tmp_path: Path, endpoint: str, body: Any, look: Any
) -> None:
    client = connect(server)
    entry = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}}
    batch = wait(client, start(client, write(tmp_path / "in.jsonl", [entry]), endpoint))
    assert batch.error_file_id is None, results(client, batch.error_file_id)
    answer = results(client, batch.output_file_id)["a"]
    assert answer["status_code"] == 200
    assert look(answer["body"])
    assert batch.usage.input_tokens > 0


def test_lists_cancel_and_delete(server: ServerProcess, connect: Connect, tmp_path: Path) -> None:
    client = connect(server)
    path = write(tmp_path / "in.jsonl", [line(i, max_tokens=900, ignore_eos=True) for i in range(200)])
    batch_id = start(client, path)
    assert client.batches.cancel(batch_id).status == "cancelling"
    batch = wait(client, batch_id)
    assert batch.status == "cancelled"
    assert batch_id in [b.id for b in client.batches.list(limit=2)]
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(batch.input_file_id)


def test_killed_server_goes_on_where_it_was(
    environ: dict[str, str], connect: Connect, tmp_path: Path
) -> None:
    """Four long lines keep the batch from its end while the others are counted."""
    sizes = [1500] * 4 + [24] * 56
    total = len(sizes)
    lines = [line(i, max_tokens=size, ignore_eos=True) for i, size in enumerate(sizes)]
    path = write(tmp_path / "in.jsonl", lines)
    arguments = ["--data-dir", str(tmp_path / "data"), "--max-num-seqs", "8"]
    batch_id, done = "", 0
    for _ in range(2):
        with ServerProcess(arguments, environ=environ) as server:
            client = connect(server)
            batch_id = batch_id or start(client, path)
            wait_for_progress(client, batch_id, done + 8)
            server.process.kill()
            server.process.wait(60)
        written = (tmp_path / "data" / "batches" / batch_id / "output.jsonl").read_bytes()
        done = written.count(b"\n")
        assert done < total
    with ServerProcess(arguments, environ=environ) as server:
        client = connect(server)
        batch = wait(client, batch_id)
        assert batch.status == "completed"
        assert (batch.request_counts.total, batch.request_counts.completed) == (total, total)
        assert batch.usage.output_tokens == sum(sizes)
        found = results(client, batch.output_file_id)
        assert set(found) == {f"line-{i}" for i in range(total)}
        assert "batches_resumed count=1" in server.log


def test_a_stop_does_not_wait_for_a_batch(environ: dict[str, str], connect: Connect, tmp_path: Path) -> None:
    lines = [line(i, max_tokens=1500, ignore_eos=True) for i in range(64)]
    path = write(tmp_path / "in.jsonl", lines)
    with ServerProcess(["--data-dir", str(tmp_path / "data")], environ=environ) as server:
        client = connect(server)
        batch_id = start(client, path)
        wait_until(lambda: client.batches.retrieve(batch_id).status == "in_progress")
        assert server.stop() == 0
    with ServerProcess(["--data-dir", str(tmp_path / "data")], environ=environ) as server:
        client = connect(server)
        assert client.batches.retrieve(batch_id).status == "in_progress"
        client.batches.cancel(batch_id)
        assert wait(client, batch_id).status == "cancelled"
