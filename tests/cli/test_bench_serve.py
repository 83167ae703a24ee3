"""`bench serve` as a command, against a server that answers each request with three tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from firelane.bench import plot
from firelane.cli import main

SHAREGPT = [
    {"conversations": [{"value": f"tell me of the number {i}"}, {"value": "it is a number"}]}
    for i in range(3)
]


class Counted(ThreadingHTTPServer):
    """bodies: of the completions and chats that were asked for. Token i is the word "wi"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Counted

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "toy"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._answer({"count": len(body["prompt"].split())})
            return
        if self.path == "/detokenize":
            self._answer({"prompt": " ".join(f"w{i}" for i in body["tokens"])})
            return
        self.server.bodies.append(body)
        is_chat = self.path.endswith("/chat/completions")
        piece = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
        events: list[Any] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}] * is_chat
        events += [{"choices": [piece]}] * 3
        events.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
        self._send("".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

    def _answer(self, value: Any) -> None:
        self._send(json.dumps(value))

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Counted]:
    with Counted() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def bench(server: Counted, *words: str) -> int:
    return main(["bench", "serve", "--url", server.url, *words])


def test_random_tokens_with_a_warm_up(server, tmp_path, capsys) -> None:
    file = tmp_path / "x.json"
    words = "--dataset-name random --random-input-len 6 --random-output-len 3 --num-prompts 4 --num-warmups 2"
    more = f"--max-concurrency 2 --goodput e2el:60000 --metadata run=a=b --save-detailed --json {file}"
    assert bench(server, *words.split(), *more.split()) == 0
    assert len(server.bodies) == 6
    assert server.bodies[0]["prompt"] == server.bodies[1]["prompt"]
    assert all(len(body["prompt"]) == 6 and body["ignore_eos"] for body in server.bodies)
    result = json.loads(file.read_text())
    asked = {"model_id": "toy", "num_prompts": 4, "request_rate": "inf", "max_concurrency": 2, "run": "a=b"}
    assert {**result, **asked} == result
    assert (result["completed"], result["total_output_tokens"], len(result["ttfts"])) == (4, 12, 4)
    assert result["request_goodput"] == result["request_throughput"]
    assert "4 requests in" in capsys.readouterr().out


def test_a_file_of_conversations_up_a_ramp(server, tmp_path) -> None:
    path, result = tmp_path / "share.json", tmp_path / "x.json"
    path.write_text(json.dumps(SHAREGPT))
    ramp = "--ramp-up-strategy exponential --ramp-up-start-rps 500 --ramp-up-end-rps 5000"
    words = f"--dataset-name sharegpt --dataset-path {path} --num-prompts 5 {ramp} --json {result}"
    assert bench(server, *words.split(), "--temperature", "1", "--extra-body", '{"top_p": 0.5}') == 0
    texts = {turns["conversations"][0]["value"] for turns in SHAREGPT}
    assert {body["prompt"] for body in server.bodies} == texts
    assert all("ignore_eos" not in body and body["top_p"] == 0.5 for body in server.bodies)
    assert json.loads(result.read_text())["ramp_up_end_rps"] == 5000


CHAT = "--backend openai-chat --endpoint /v1/chat/completions"


def test_chats_of_random_tokens(server, tmp_path) -> None:
    file = tmp_path / "x.json"
    words = f"{CHAT} --dataset-name random --random-input-len 6 --random-output-len 3 --num-prompts 4"
    assert bench(server, *words.split(), "--json", str(file)) == 0
    for body in server.bodies:
        (message,) = body["messages"]
        assert message["role"] == "user"
        assert len(message["content"].split()) == 6
        assert (body["max_completion_tokens"], "max_tokens" in body, "prompt" in body) == (3, False, False)
    result = json.loads(file.read_text())
    assert (result["endpoint_type"], result["completed"]) == ("openai-chat", 4)
    assert result["total_output_tokens"] == 12


def test_chats_of_a_file_of_conversations(server, tmp_path) -> None:
    path = tmp_path / "share.json"
    path.write_text(json.dumps(SHAREGPT))
    words = f"--backend openai-chat --dataset-name sharegpt --dataset-path {path} --num-prompts 3"
    assert bench(server, *words.split()) == 0
    texts = {turns["conversations"][0]["value"] for turns in SHAREGPT}
    assert {body["messages"][0]["content"] for body in server.bodies} == texts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--backend openai-chat --endpoint /v1/completions", "asks a path such as /v1/chat/completions"),
        ("--endpoint /v1/chat/completions", "--backend openai asks a path such as /v1/completions"),
        ("--endpoint v1/completions", "asks a path such as"),
        ("--dataset-name sharegpt", "--dataset-path names the file of --dataset-name sharegpt"),
        ("--dataset-path x", "--dataset-path names the file of --dataset-name sharegpt"),
        ("--ramp-up-start-rps 1", "need --ramp-up-strategy"),
        ("--ramp-up-strategy linear --ramp-up-start-rps 1", "needs --ramp-up-start-rps and"),
        ("--ramp-up-strategy linear --ramp-up-start-rps 2 --ramp-up-end-rps 1", "a ramp goes up"),
        ("--metric-percentiles 50,x", "--metric-percentiles 50,x: give numbers"),
        ("--goodput itl:1", "--goodput itl:1: give ttft:MS"),
        ("--metadata x", "--metadata x: give KEY=VALUE"),
        ("--extra-body []", "--extra-body is no JSON object"),
        ("--dataset-name random --random-range-ratio 1", "--random-range-ratio 1.0: give 0 or more"),
    ],
)
def test_wrong_options_are_one_line(server, capsys, words: str, message: str) -> None:
    assert bench(server, *words.split()) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert server.bodies == []


def test_a_plot_needs_matplotlib(server, capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda _: None)
    assert bench(server, "--save-plot", str(tmp_path / "x.png")) == 2
    assert "firelane[plot]" in capsys.readouterr().err
