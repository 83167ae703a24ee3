"""Tokens of texts and texts of tokens, by a file and by a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from firelane.bench.tokens import LocalTokens, ServerTokens, as_text
from firelane.bench.workload import BenchRequest
from firelane.errors import MachineError, UsageError

EMBEDDED = Path(__file__).parents[2] / "firelane" / "models" / "embedded"
Answer = Callable[[str, dict[str, Any], str | None], dict[str, Any]]


def test_by_a_tokenizer(tmp_path: Path) -> None:
    tokens = LocalTokens(EMBEDDED)
    assert tokens.count("hello world") == LocalTokens(EMBEDDED / "tokenizer.json").count("hello world") > 0
    assert tokens.text([300]) == tokens.text([300, 300])[: len(tokens.text([300]))]
    with pytest.raises(UsageError, match="--tokenizer"):
        LocalTokens(tmp_path)


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer(self.path, body, self.headers["Authorization"])).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_by_the_server() -> None:
    def answer(path: str, body: dict[str, Any], key: str | None) -> dict[str, Any]:
        assert (body["model"], key) == ("m", "Bearer k")
        if path == "/detokenize":
            return {"prompt": "-".join(map(str, body["tokens"]))}
        return {"/tokenize": {"count": len(body.get("prompt", "").split())}}[path]

    with serving(answer) as url:
        tokens = ServerTokens(url, "m", api_key="k")
        assert tokens.count("one two three") == 3
        assert tokens.text([4, 5]) == "4-5"
        requests = [
            BenchRequest(prompt=[1, 2], output_tokens=3),
            BenchRequest(prompt="as it is", output_tokens=4),
        ]
        assert as_text(requests, tokens) == [
            BenchRequest(prompt="1-2", output_tokens=3),
            BenchRequest(prompt="as it is", output_tokens=4),
        ]


@pytest.mark.parametrize("wrong", [{}, {"count": "x", "prompt": 3}, {"error": "no"}])
def test_a_server_that_cannot(wrong: dict[str, Any]) -> None:
    with serving(lambda *_: wrong) as url:
        for ask in (lambda one: one.count("a"), lambda one: one.text([1])):
            with pytest.raises(MachineError, match=r"tokenize: .*--tokenizer"):
                ask(ServerTokens(url, "m"))
