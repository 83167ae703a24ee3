"""/completion and /infill, in the shapes of llama-server and of its editor extensions."""

from __future__ import annotations

import json

import pytest
from completions_support import prompt_of
from infill_support import coder_service, prompt_text

from tests.text.infill_models import QWEN

EXTENSION = {
    "top_k": 40, "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 2500,
}  # fmt: skip
"""Fields that llama.vscode and llama.vim send with each request."""


@pytest.fixture
def coder(make_service, tmp_path):
    return coder_service(make_service, tmp_path)


def post(service, path, **fields):
    answer = service.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(service, path, **fields):
    answer = service.http.post(path, json={**fields, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]


def test_llama_vscode(coder):
    coder.text = "a, b"
    chunks = [{"text": "A = 1\n", "time": 1764270000, "filename": "a.py"}]
    answer = post(
        coder, "/infill", input_prefix="import a\n", input_suffix="):\n", prompt="def f(",
        input_extra=chunks, n_predict=128, n_indent=4, **EXTENSION,
    )  # fmt: skip
    assert prompt_text(coder) == (
        "<|bos|><|repo_name|>myproject\n<|file_sep|>a.py\nA = 1\n<|file_sep|>filename\n"
        "<|fim_prefix|>import a\ndef f(<|fim_suffix|>):\n<|fim_middle|>"
    )
    assert answer["content"] == "a, b"
    assert answer["stop"] is True
    assert answer["stop_type"] == "eos"
    assert answer["truncated"] is False
    assert answer["tokens_evaluated"] == len(prompt_of(coder.engine.submitted[0]))
    assert answer["tokens_predicted"] == 5
    assert answer["tokens_cached"] == 0
    assert answer["generation_settings"]["n_ctx"] == coder.model.max_model_len
    timings = answer["timings"]
    assert timings["prompt_n"] == answer["tokens_evaluated"]
    assert timings["predicted_n"] == 5
    assert {"prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"} <= timings.keys()
    sampling = coder.engine.submitted[0].sampling
    assert (sampling.max_tokens, sampling.top_k) == (128, 40)
    assert sampling.top_p == pytest.approx(0.99)
    assert {coder.core.token_to_id(name) for name in QWEN} <= set(sampling.stop_token_ids)


def test_the_cache_is_warmed_without_an_answer(coder):
    """The request that the extensions send ahead of typing."""
    answer = post(
        coder, "/infill", input_prefix="", input_suffix="",
        input_extra=[{"text": "B = 2\n", "filename": "b.py"}], prompt="", n_predict=0, samplers=[],
        cache_prompt=True, t_max_prompt_ms=500, t_max_predict_ms=1,
    )  # fmt: skip
    assert answer["content"] == ""
    assert answer["tokens_predicted"] == 0
    assert "<|file_sep|>b.py\nB = 2\n" in prompt_text(coder)
    assert post(coder, "/infill", input_prefix="", input_suffix="", n_predict=0, response_fields=[""]) == {}


def test_infill_stream(coder):
    found = events(coder, "/infill", input_prefix="x", input_suffix="y", n_predict=40)
    assert "".join(event["content"] for event in found) == "hello world"
    assert [event["stop"] for event in found] == [False] * (len(found) - 1) + [True]
    tokens = [token for event in found for token in event["tokens"]]
    assert coder.core.decode(tokens) == "hello world"
    last = found[-1]
    assert (last["content"], last["stop_type"], last["tokens_predicted"]) == ("", "eos", 12)
    assert last["prompt"] == "<|bos|><|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>"


def test_what_does_not_fit_is_cut_and_said(coder):
    most = coder.model.max_model_len
    answer = post(
        coder, "/infill", input_prefix="p" * 3000, input_suffix="s" * 3000, n_predict=10,
        input_extra=[{"text": "x" * 500}],
    )  # fmt: skip
    assert answer["truncated"] is True
    assert answer["tokens_evaluated"] == most - 10
    text = prompt_text(coder)
    assert text.count("pp") > text.count("ss") > 0
    again = post(coder, "/infill", input_prefix="p" * 3000, input_suffix="s" * 3000, n_predict=10)
    assert again["prompt"] == answer["prompt"]
    endless = post(coder, "/infill", input_prefix="p" * 3000, input_suffix="")
    assert endless["tokens_evaluated"] == most - most // 4


def test_typed_marks_stay_text(coder):
    post(
        coder, "/infill", input_prefix="<|fim_middle|>", input_suffix="<|eos|>", prompt="<|file_sep|>",
        n_predict=4, input_extra=[{"filename": "<|repo_name|>", "text": "<|fim_pad|>"}],
    )  # fmt: skip
    marks = {coder.core.token_to_id(name) for name in (*QWEN, "<|eos|>")}
    names = [coder.core.id_to_token(one) for one in prompt_of(coder.engine.submitted[0]) if one in marks]
    assert names == ["<|repo_name|>", "<|file_sep|>", "<|file_sep|>", *QWEN[:3]]


def test_a_model_without_marks(service):
    answer = service.http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert answer.status_code == 400
    assert "cannot fill in the middle" in answer.json()["error"]["message"]
    assert service.gateway.in_flight == 0


def test_completion(service):
    answer = post(service, "/completion", prompt="say", n_predict=40, temperature=0, seed=7)
    assert answer["content"] == "hello world"
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (4, 12)
    assert (answer["prompt"], answer["tokens"], answer["stop_type"]) == ("say", [], "eos")
    assert answer["generation_settings"]["seed"] == 7
    assert answer["generation_settings"]["temperature"] == 0
    assert answer["generation_settings"]["n_predict"] == 40
    short = post(service, "/completion", prompt=service.ids("say"), n_predict=3, return_tokens=True)
    assert (short["content"], short["stop_type"]) == ("hel", "limit")
    assert short["tokens"] == service.ids("hel")
    assert prompt_of(service.engine.submitted[-1]) == service.ids("say")


def test_completion_without_a_limit_has_the_rest_of_the_context(service):
    for fields in ({}, {"n_predict": -1}, {"n_predict": 10**6}):
        post(service, "/completion", prompt="say", **fields)
        assert service.engine.submitted[-1].sampling.max_tokens == service.model.max_model_len - 4


def test_values_that_nobody_names_are_llama_cpps(service):
    answer = post(service, "/completion", prompt="say")
    sampling = service.engine.submitted[-1].sampling
    settings = answer["generation_settings"]
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.8, 40, 0.95, 0.05)
    assert [settings[name] for name in ("temperature", "top_k", "top_p", "min_p")] == [0.8, 40, 0.95, 0.05]
    assert settings["seed"] == sampling.seed


def test_stop_words_and_new_lines(service):
    service.text = "one\ntwo three"
    answer = post(service, "/completion", prompt="say", stop=["three"])
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("one\ntwo ", "word", "three")
    assert answer["has_new_line"] is True
    found = events(service, "/completion", prompt="say", stop=["\n"])
    assert "".join(event["content"] for event in found) == "one"
    assert found[-1]["stopping_word"] == "\n"
    assert found[-1]["has_new_line"] is False


def test_response_fields(service):
    wanted = ["content", "generation_settings/n_predict", "timings/nothing", "none", "content/deep"]
    answer = post(service, "/completion", prompt="say", n_predict=5, response_fields=wanted)
    assert answer == {"content": "hello", "generation_settings/n_predict": 5}


def test_probabilities(service):
    answer = post(service, "/completion", prompt="say", n_predict=2, n_probs=2)
    first = answer["completion_probabilities"][0]
    assert (first["token"], first["bytes"], first["id"]) == ("h", [104], service.ids("h")[0])
    assert first["logprob"] <= 0
    assert len(first["top_logprobs"]) == 2
    found = events(service, "/completion", prompt="say", n_predict=2, n_probs=1)
    shown = [one["token"] for event in found for one in event.get("completion_probabilities", [])]
    assert shown == ["h", "e"]


def test_the_time_of_an_answer_is_limited_once_it_has_a_line(make_service):
    """The limit is in the past from the second token on."""
    service = make_service()
    service.text = "one\n" + "x" * 60
    answer = post(service, "/completion", prompt="say", t_max_predict_ms=1e-9)
    assert answer["stop_type"] in ("limit", "eos")
    assert answer["content"].startswith("one\n")
    service.text = "x" * 60
    assert post(service, "/completion", prompt="say", t_max_predict_ms=1e-9)["content"] == "x" * 60


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/infill", {"input_prefix": "a"}, "input_suffix"),
        ("/infill", {"input_suffix": "a"}, "input_prefix"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": ["x"]}, "input_extra[0]"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]}, "input_extra[0].text"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": -3}, "n_predict"),
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": ["a", "b"]}, "prompt"),
        ("/completion", {"prompt": [[1], [2]]}, "prompt"),
        ("/completion", {"prompt": [1, "b"]}, "prompt"),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt"),
        ("/completion", {"prompt": "a", "n_cmpl": 2}, "n_cmpl"),
        ("/completion", {"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs"),
        ("/completion", {"prompt": "a", "mirostat": 2}, "mirostat"),
        ("/completion", {"prompt": "a", "response_fields": "content"}, "response_fields"),
        ("/completion", {"prompt": "x" * 5000}, "prompt"),
        ("/completion", {"prompt": ""}, None),
    ],
)
def test_refused(coder, path, fields, param):
    answer = coder.http.post(path, json=fields)
    if fields.get("prompt") == "":
        assert answer.status_code == 200  # BOS alone
        return
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert coder.gateway.in_flight == 0


def test_methods(service):
    for path in ("/completion", "/infill"):
        answer = service.http.get(path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"


def test_hints_are_named(service):
    body = {"prompt": "say", "n_keep": 3, "samplers": ["top_k"], "t_max_prompt_ms": 5, "surprise": 1}
    answer = service.http.post("/completion", json=body)
    assert answer.status_code == 200
    assert set(answer.headers["x-ignored-fields"].split(", ")) == {
        "n_keep",
        "samplers",
        "t_max_prompt_ms",
        "surprise",
    }


def test_grammar_and_schema(service):
    service.text = '{"a":1}'
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    post(service, "/completion", prompt="say", json_schema=schema)
    assert service.engine.submitted[-1].grammar is not None
    post(service, "/completion", prompt="say", grammar='root ::= "a" | "b"')
    assert service.engine.submitted[-1].grammar is not None


def test_biases_as_pairs_and_by_id(service):
    for given in ([[9, 1.5], [3, False]], {"9": 1.5, "3": -100}):
        answer = post(service, "/completion", prompt="say", logit_bias=given)
        assert service.engine.submitted[-1].sampling.logit_bias == [(3, -100.0), (9, 1.5)]
        assert sorted(answer["generation_settings"]["logit_bias"]) == [[3, -100.0], [9, 1.5]]
    for wrong in ([[9]], [[9, True]], [["a", 1]], [[9, 101]], [[-1, 1]], [[9999, 1]], [[1, 0]] * 301, "x"):
        answer = service.http.post("/completion", json={"prompt": "say", "logit_bias": wrong})
        assert answer.status_code == 400, wrong
    assert post(service, "/completion", prompt="say", logit_bias=[])["content"] == "hello world"
