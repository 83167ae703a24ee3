"""Images by every API, through a real server, on a toy of transformers."""

from __future__ import annotations

import base64
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e_support import TIMEOUT_S, metric, wait_until

from firelane.bench.server import ServerProcess
from tests.models.towers.tower_run import picture, save_toy
from tests.text.toy_model import byte_tokenizer, write_model

pillow = pytest.importorskip("PIL.Image")

SIZE = (64, 96)
ROWS = 64 * 96 // 8**2
PROCESSOR = '{"size": {"shortest_edge": 4096, "longest_edge": 16384}}'


@pytest.fixture(scope="module")
def server(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_model(tmp_path_factory.mktemp("qwen3_vl"), byte_tokenizer())
    save_toy(model)
    (model / "preprocessor_config.json").write_text(PROCESSOR)
    with ServerProcess([str(model), "--images", "--max-num-seqs", "4"], environ=environ) as started:
        yield started


def png(seed: int = 1, size: tuple[int, int] = SIZE, kind: str = "PNG") -> str:
    """An encoded picture, as base64."""
    file = io.BytesIO()
    pillow.fromarray(picture(seed, *size)).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def url(seed: int = 1, size: tuple[int, int] = SIZE) -> str:
    return f"data:image/png;base64,{png(seed, size)}"


def name_of(server: ServerProcess) -> str:
    return httpx.get(f"{server.url}/v1/models", timeout=TIMEOUT_S).json()["data"][0]["id"]


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=TIMEOUT_S)


def chat(server: ServerProcess, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": [*parts]}]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "logprobs": True} | fields
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def image(source: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": source, **fields}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def drawn(answer: dict[str, Any]) -> list[float]:
    return [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]


def test_an_image_counts_and_changes_the_answer(server: ServerProcess) -> None:
    alone = chat(server, text("ab"))
    one = chat(server, image(url(1)), text("ab"))
    assert one["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"] + ROWS + 2
    assert drawn(one) != drawn(alone)
    assert drawn(chat(server, image(url(2)), text("ab"))) != drawn(one)
    again = chat(server, image(url(1)), text("ab"))
    assert drawn(again) == drawn(one)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= ROWS - 16
    low = chat(server, image(url(1, (128, 128)), detail="low"), text("ab"))
    assert low["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"] + 256 + 2


def test_apis_give_the_same_answer(server: ServerProcess) -> None:
    want = chat(server, image(url(3)), text("cd"))["choices"][0]["message"]["content"]
    source = {"type": "base64", "media_type": "image/png", "data": png(3)}
    body = {
        "model": name_of(server),
        "max_tokens": 8,
        "temperature": 0,
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "cd"}]}
        ],
    }
    found = post(server, "/v1/messages", body).json()
    assert found["content"][0]["text"] == want
    parts = [{"type": "input_image", "image_url": url(3)}, {"type": "input_text", "text": "cd"}]
    body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 8, "temperature": 0}
    found = post(server, "/v1/responses", body).json()
    assert found["output"][0]["content"][0]["text"] == want
    body = {
        "model": name_of(server),
        "messages": [{"role": "user", "content": "cd", "images": [png(3)]}],
        "options": {"temperature": 0, "num_predict": 8, "repeat_penalty": 1.0},
        "stream": False,
    }
    assert post(server, "/api/chat", body).json()["message"]["content"] == want


def test_an_image_in_a_tool_result_is_read(server: ServerProcess) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": png(4)}
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    answer = post(server, "/v1/messages", {"model": name_of(server), "max_tokens": 4, "messages": messages})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["input_tokens"] > ROWS


def test_answers_survive_their_engine(server: ServerProcess) -> None:
    parts = (image(url(5)), text("ef"), image(url(6)), text("gh"))
    want = drawn(chat(server, *parts))
    deaths = metric(server.url, "firelane:engine_deaths_total")
    os.kill(server.engine_pids[0], signal.SIGKILL)
    wait_until(lambda: metric(server.url, "firelane:engine_deaths_total") > deaths)
    wait_until(lambda: metric(server.url, "firelane:replicas_up") == 1)
    assert drawn(chat(server, *parts)) == want


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("https://example.org/a.png", "fetches no images"),
        ("http://127.0.0.1/a.png", "fetches no images"),
        ("data:image/svg+xml;base64,AAAA", "media type"),
        ("data:image/png,abc", "not in base64"),
        ("data:image/png;base64,%%%%", "no valid base64"),
        ("data:image/png;base64,", "empty"),
        ("data:image/png;base64,AAAA", "damaged"),
        (url(1)[:-4000], "truncated"),
        (url(1, (1, 2000)), "more than 200 times"),
    ],
    ids=range(9),
)
def test_images_that_are_refused(server: ServerProcess, given: str, says: str) -> None:
    body = {"messages": [{"role": "user", "content": [image(given)]}], "max_tokens": 4}
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages[0].content[0]"


def test_prompts_with_images_are_shown_as_tokens(server: ServerProcess) -> None:
    """In place of an image's rows stands its token; a template alone shows no image."""
    messages = [{"role": "user", "content": [image(url(1)), text("ab")]}]
    found = post(server, "/tokenize", {"messages": messages}).json()["tokens"]
    assert found.count(5) >= ROWS
    assert min(found) >= 0
    assert post(server, "/apply-template", {"messages": messages}).status_code == 400
    shown = post(server, "/api/show", {"model": name_of(server)}).json()
    assert "vision" in shown["capabilities"]


def test_too_many_images_are_refused(server: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": [image(url(1))] * 17}], "max_tokens": 4}
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 400
    assert "at most" in answer.json()["error"]["message"]


def test_a_model_without_a_tower_says_so(null_server: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": [image(url(1))]}], "max_tokens": 4}
    answer = post(null_server, "/v1/chat/completions", body)
    assert answer.status_code == 400
    assert "reads text only" in answer.json()["error"]["message"]
    history = [{"role": "user", "content": [image(url(1))]}, {"role": "assistant", "content": "a"}]
    body = {"messages": [*history, {"role": "user", "content": "b"}], "max_tokens": 4}
    assert post(null_server, "/v1/chat/completions", body).status_code == 200


def test_options_that_do_not_go_together_are_refused(environ: dict[str, str], tmp_path: Path) -> None:
    model = write_model(tmp_path, byte_tokenizer())
    save_toy(model)
    for more in (["--tensor-parallel-size", "2"], ["--backend", "null"]):
        with (
            pytest.raises(Exception, match="--images"),
            ServerProcess([str(model), "--images", *more], environ=environ),
        ):
            pass
