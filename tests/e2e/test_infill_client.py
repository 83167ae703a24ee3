"""Gaps that a server fills which computes: the embedded model, whose last tokens are marks here. It was not
trained with them: what is compared is the answer to the same tokens, given as they are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from e2e_support import TIMEOUT_S, wait_until

import firelane.models
from firelane.bench.server import ServerProcess

Connect = Callable[[ServerProcess], openai.OpenAI]
MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
PREFIX, SUFFIX = "def add(first, second):\n    total = ", "\n    return total\n"
NAME = "coder"


def coder(path: Path) -> Path:
    """The embedded model with the marks in the place of its last entries."""
    shutil.copytree(Path(firelane.models.__file__).parent / "embedded", path)
    tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    by_id = {i: name for name, i in model["vocab"].items()}
    last = max(by_id)
    dropped = [by_id[last - i] for i in range(len(MARKS))]
    model["merges"] = [pair for pair in model["merges"] if not set(made_of(pair)) & set(dropped)]
    for name, mark in zip(dropped, MARKS, strict=True):
        token = model["vocab"].pop(name)
        model["vocab"][mark] = token
        added.append({**added[0], "id": token, "content": mark})
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return path


def made_of(pair: Any) -> tuple[str, ...]:
    """Both parts of a merge and what they become."""
    parts = tuple(pair.split(" ") if isinstance(pair, str) else pair)
    return (*parts, "".join(parts))


@pytest.fixture(scope="module")
def server(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("infill")
    options = ["--max-num-seqs", "4", "--data-dir", str(folder / "data")]
    with ServerProcess([str(coder(folder / NAME)), *options], environ=environ) as started:
        yield started


def post(server: ServerProcess, path: str, **fields: Any) -> Any:
    answer = httpx.post(server.url + path, json=fields, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_answer_is_that_to_the_same_tokens(server: ServerProcess, connect: Connect) -> None:
    client = connect(server)
    for suffix in (SUFFIX, "\n    print(total)\n"):
        asked: dict[str, Any] = {"model": NAME, "max_tokens": 16, "temperature": 0}
        filled = client.completions.create(prompt=PREFIX, suffix=suffix, **asked)
        (read,) = post(server, "/v1/completions/render", prompt=PREFIX, suffix=suffix)
        assert read["text"] == f"<|bos|><|fim_prefix|>{PREFIX}<|fim_suffix|>{suffix}<|fim_middle|>"
        marks = sorted(read["token_ids"])[-3:]
        plain = client.completions.create(
            prompt=read["token_ids"], extra_body={"stop_token_ids": marks}, **asked
        )
        assert filled.choices[0].text == plain.choices[0].text
        assert filled.usage is not None
        assert plain.usage is not None
        assert filled.usage.prompt_tokens == plain.usage.prompt_tokens == len(read["token_ids"])
        assert filled.usage.completion_tokens == plain.usage.completion_tokens


def test_infill_and_its_stream_and_the_suffix_agree(server: ServerProcess, connect: Connect) -> None:
    asked = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 16, "temperature": 0}
    whole = post(server, "/infill", **asked)
    answer = httpx.post(server.url + "/infill", json={**asked, "stream": True}, timeout=TIMEOUT_S)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert "".join(event["content"] for event in events) == whole["content"]
    made = connect(server).completions.create(
        model=NAME, prompt=PREFIX, suffix=SUFFIX, max_tokens=16, temperature=0
    )
    assert made.choices[0].text == whole["content"]
    assert whole["timings"]["predicted_n"] == whole["tokens_predicted"]
    assert whole["timings"]["predicted_ms"] > 0


def test_a_warmed_prompt_is_found_in_the_cache(server: ServerProcess) -> None:
    prefix = "import os\nimport sys\n" * 30
    asked = {"input_prefix": prefix, "input_suffix": SUFFIX, "temperature": 0}
    warmed = post(server, "/infill", n_predict=0, **asked)
    assert (warmed["content"], warmed["tokens_predicted"]) == ("", 0)
    found = post(server, "/infill", n_predict=8, **asked)
    assert found["tokens_cached"] > 64
    assert found["timings"]["prompt_n"] == found["tokens_evaluated"] - found["tokens_cached"]
    httpx.post(server.url + "/flush_cache", timeout=TIMEOUT_S).raise_for_status()
    again = post(server, "/infill", n_predict=8, **asked)
    assert again["tokens_cached"] == 0
    assert again["content"] == found["content"]


def test_a_time_limit_ends_an_answer_that_has_a_line(server: ServerProcess) -> None:
    asked = {"prompt": "import os\nimport sys\n", "n_predict": 400, "temperature": 0, "ignore_eos": True}
    whole, cut = (
        post(server, "/completion", **asked),
        post(server, "/completion", t_max_predict_ms=1, **asked),
    )
    assert whole["content"].startswith(cut["content"])
    assert "\n" in cut["content"]
    assert cut["tokens_predicted"] < whole["tokens_predicted"]
    assert cut["stop_type"] == "limit"


def test_message_batches_with_anthropics_client(server: ServerProcess) -> None:
    talk: list[Any] = [{"role": "user", "content": "Tell me about number 1."}]
    items: list[Any] = [
        {"custom_id": f"line-{i}", "params": {"model": NAME, "max_tokens": 4 + i, "messages": talk}}
        for i in range(4)
    ]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        made = client.messages.batches.create(requests=items)
        wait_until(lambda: client.messages.batches.retrieve(made.id).processing_status == "ended")
        results = {one.custom_id: one.result for one in client.messages.batches.results(made.id)}
        assert {result.type for result in results.values()} == {"succeeded"}
        assert len(results) == 4
        assert client.messages.batches.delete(made.id).id == made.id
