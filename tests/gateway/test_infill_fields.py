"""`suffix` of /v1/completions and of Ollama's /api/generate."""

from __future__ import annotations

import ollama
import pytest
from completions_support import prompt_of
from infill_support import coder_service, prompt_text
from service import PATIENCE_S

from tests.text.infill_models import CODESTRAL, QWEN


@pytest.fixture
def coder(make_service, tmp_path):
    return coder_service(make_service, tmp_path)


def test_openai_client(coder):
    coder.text = "a, b"
    answer = coder.openai.completions.create(model="toy", prompt="def f(", suffix="):\n", max_tokens=40)
    assert answer.choices[0].text == "a, b"
    assert answer.choices[0].finish_reason == "stop"
    assert prompt_text(coder) == "<|bos|><|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>"
    assert answer.usage.prompt_tokens == 4 + len("def f(") + len("):\n")
    assert answer.usage.completion_tokens == 5


def test_each_prompt_has_the_suffix(coder):
    coder.script = lambda prompt, _: [prompt[2], 1]
    answer = coder.openai.completions.create(model="toy", prompt=["ab", "xy"], suffix="cd", max_tokens=9)
    assert [choice.text for choice in answer.choices] == ["a", "x"]
    assert prompt_text(coder, 1) == "<|bos|><|fim_prefix|>xy<|fim_suffix|>cd<|fim_middle|>"


def test_stream(coder):
    events = coder.events("/v1/completions", {"prompt": "a", "suffix": "b", "max_tokens": 40})
    assert "".join(event["choices"][0]["text"] for event in events) == "hello world"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", QWEN)
def test_every_mark_ends_the_answer(coder, name):
    mark = coder.core.token_to_id(name)
    coder.script = lambda *_: [*coder.ids("x = 1"), mark, *coder.ids("more"), 1]
    answer = coder.openai.completions.create(model="toy", prompt="a", suffix="b", max_tokens=40)
    assert answer.choices[0].text == "x = 1"
    assert answer.choices[0].finish_reason == "stop"


def test_marks_end_nothing_elsewhere_and_where_eos_is_ignored(coder):
    marks = {coder.core.token_to_id(name) for name in QWEN}
    coder.openai.completions.create(model="toy", prompt="a", max_tokens=4)
    fields = {"prompt": "a", "suffix": "b", "max_tokens": 4, "ignore_eos": True}
    assert coder.http.post("/v1/completions", json=fields).status_code == 200
    coder.openai.completions.create(model="toy", prompt="a", suffix="b", max_tokens=4)
    plain, ignoring, filling = (set(one.sampling.stop_token_ids) for one in coder.engine.submitted)
    assert plain == {1}
    assert ignoring == set()
    assert filling == {1, *marks}


def test_typed_marks_stay_text(coder):
    coder.openai.completions.create(
        model="toy", prompt="<|fim_suffix|>x", suffix="<|eos|><|file_sep|>", max_tokens=4
    )
    found = prompt_of(coder.engine.submitted[0])
    names = [
        coder.core.id_to_token(token)
        for token in found
        if token not in coder.ids("".join(map(chr, range(128))))
    ]
    assert names == ["<|bos|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    assert prompt_text(coder) == (
        "<|bos|><|fim_prefix|><|fim_suffix|>x<|fim_suffix|><|eos|><|file_sep|><|fim_middle|>"
    )


def test_suffix_first(make_service, tmp_path):
    service = coder_service(make_service, tmp_path, CODESTRAL)
    service.openai.completions.create(model="toy", prompt="def f(", suffix="):", max_tokens=4)
    assert prompt_text(service) == "<|bos|>[SUFFIX]):[PREFIX]def f("


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": [5, 6]}, "suffix", "of text, not of token ids"),
        ({"echo": True}, "echo", "do not go together"),
        ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens", "do not go together"),
        ({"prompt": "x" * 5000}, "prompt", "Please reduce the length"),
        ({"suffix": "x" * 5000}, "prompt", "Please reduce the length"),
        ({"suffix": 1}, "suffix", "str"),
    ],
)
def test_refused(coder, fields, param, words):
    answer = coder.http.post(
        "/v1/completions", json={"prompt": "a", "suffix": "b", "max_tokens": 4, **fields}
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert words in answer.json()["error"]["message"]


def test_a_model_without_marks_says_so(service):
    answer = service.http.post("/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert "<|fim_prefix|>" in error["message"]
    answer = service.http.post("/api/generate", json={"model": "toy", "prompt": "a", "suffix": "b"})
    assert answer.status_code == 400
    assert "cannot fill in the middle" in answer.json()["error"]


def test_render_shows_the_marks(coder):
    (found,) = coder.http.post("/v1/completions/render", json={"prompt": "a", "suffix": "b"}).json()
    assert found["text"] == "<|bos|><|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"


def test_ollama_client(coder):
    coder.text = "a, b"
    with ollama.Client(host=coder.url, timeout=PATIENCE_S, trust_env=False) as client:
        answer = client.generate("toy", prompt="def f(", suffix="):\n")
        assert answer.response == "a, b"
        assert prompt_text(coder) == "<|bos|><|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>"
        assert answer.prompt_eval_count == 13
        client.generate("toy", prompt="", suffix=" = 1")
        assert prompt_text(coder) == "<|bos|><|fim_prefix|><|fim_suffix|> = 1<|fim_middle|>"
        parts = client.generate("toy", prompt="x", suffix="y", stream=True)
        assert "".join(part.response for part in parts) == "a, b"
        assert client.show("toy").capabilities == ["completion", "insert", "embedding"]


def test_continue_asks_ollama_so(coder):
    """The request of the editor extension Continue for a completion in the text."""
    body = {
        "model": "toy", "prompt": "def f(", "suffix": "):\n", "raw": False, "stream": True,
        "keep_alive": 1800,
        "options": {
            "temperature": 0.01, "top_p": None, "top_k": None, "num_predict": 20, "stop": ["\n\n"],
            "num_ctx": 4096, "mirostat": None, "num_thread": None, "use_mmap": None, "min_p": None,
            "num_gpu": None,
        },
    }  # fmt: skip
    answer = coder.http.post("/api/generate", json=body)
    assert answer.status_code == 200, answer.text
    assert prompt_text(coder) == "<|bos|><|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>"
    sampling = coder.engine.submitted[0].sampling
    assert (sampling.max_tokens, sampling.temperature) == (20, 0.01)


def test_ollama_system_beside_a_suffix_is_refused(coder):
    body = {"model": "toy", "prompt": "a", "suffix": "b", "system": "You are a coder."}
    answer = coder.http.post("/api/generate", json=body)
    assert answer.status_code == 400
    assert "`suffix` has no `system`" in answer.json()["error"]


CONTINUE = {
    "model": "toy", "prompt": "def f(", "suffix": "):\n", "max_tokens": 20, "temperature": 0.01,
    "stop": ["\n\n"], "stream": True,
}  # fmt: skip
"""The request of the editor extension Continue for a completion in the text, by Mistral's path."""


@pytest.mark.parametrize("path", ["/v1/fim/completions", "/fim/completions"])
def test_continue_asks_mistrals_path_so(coder, path):
    coder.text = "a, b"
    events = coder.events(path, CONTINUE)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "a, b"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert prompt_text(coder) == "<|bos|><|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>"


def test_mistrals_answer_in_one_piece(coder):
    body = {"model": "toy", "prompt": "def f(", "suffix": ")", "random_seed": 5, "min_tokens": None}
    answer = coder.http.post("/v1/fim/completions", json=body).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "hello world"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["prompt_tokens"] == 4 + len("def f()")
    sampling = coder.engine.submitted[0].sampling
    assert sampling.max_tokens == coder.model.max_model_len - 11
    assert sampling.seed == 5
    bare = coder.http.post("/v1/fim/completions", json={"prompt": "ab", "suffix": "", "max_tokens": 2})
    assert bare.status_code == 200
    assert prompt_text(coder) == "<|bos|>ab"
    assert coder.http.get("/v1/fim/completions").status_code == 405
    assert coder.http.post("/v1/fim/completions", json={"suffix": "a"}).status_code == 400


def test_deepseeks_path(coder):
    body = {"model": "toy", "prompt": "a", "suffix": "b", "max_tokens": 5}
    answer = coder.http.post("/beta/completions", json=body).json()
    assert answer["choices"][0]["text"] == "hello"
    assert prompt_text(coder) == "<|bos|><|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"


def test_a_prompt_of_marks_that_the_client_has_made(coder):
    """Editor extensions that know the model's marks write the whole prompt, and may not tell what ends it."""
    raw = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    mark = coder.core.token_to_id("<|fim_pad|>")
    coder.script = lambda *_: [*coder.ids("x = 1"), mark, *coder.ids("more"), 1]
    for path, limit in (("/v1/completions", "max_tokens"), ("/completion", "n_predict")):
        answer = coder.http.post(path, json={"prompt": raw, limit: 40}).json()
        assert answer.get("content", answer.get("choices", [{}])[0].get("text")) == "x = 1"
    assert prompt_text(coder) == f"<|bos|>{raw}"
    answer = coder.http.post("/v1/completions", json={"prompt": raw + "x", "max_tokens": 40}).json()
    assert answer["choices"][0]["text"] == "x = 1more"
