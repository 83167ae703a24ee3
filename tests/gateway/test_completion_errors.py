"""Completions that are refused, and neutral values that are not."""

from __future__ import annotations

import openai
import pytest
from completions_support import completion


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": ["a", 1]}, "prompt", "mixes"),
        ({"prompt": [[]]}, "prompt", "empty list of token ids"),
        ({"prompt": [9999]}, "prompt", "9999"),
        ({"prompt": [-1]}, "prompt[0]", ">= 0"),
        ({"prompt": 5}, "prompt", "int"),
        ({"temperature": -0.1}, "temperature", ">= 0"),
        ({"temperature": 2.1}, "temperature", "<= 2"),
        ({"top_p": 1.5}, "top_p", "<= 1"),
        ({"top_k": -2}, "top_k", ">= -1"),
        ({"n": 0}, "n", ">= 1"),
        ({"n": 100, "max_tokens": 1}, "n", "at most"),
        ({"max_tokens": -2}, "max_tokens", ">= -1"),
        ({"max_tokens": 0}, "max_tokens", "nothing to answer"),
        ({"max_tokens": "5"}, "max_tokens", "str"),
        ({"min_tokens": 50}, "min_tokens", "more than"),
        ({"logprobs": 21}, "logprobs", "<= 20"),
        ({"stop": ""}, "stop", "length >= 1"),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "9999"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "int"),
        ({"stop_token_ids": [9999]}, "stop_token_ids", "9999"),
        ({"stop_token_ids": list(range(2, 18))}, "stop_token_ids", "at most 16 are taken"),
        ({"best_of": 3, "n": 4}, "best_of", "less than `n`"),
        ({"best_of": 3, "stream": True}, "best_of", "not available in a stream"),
        ({"best_of": 21}, "best_of", "<= 20"),
        ({"use_beam_search": True}, "use_beam_search", "not supported"),
        ({"mirostat": 1}, "mirostat", "not supported"),
        ({"prompt_embeds": "x"}, "prompt_embeds", "not supported"),
        ({"prompt": ["a"] * 2049}, "prompt", "at most 2048"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias", "at most 300"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not available in a stream"),
        ({"suffix": "x"}, "suffix", "cannot fill in the middle"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "not supported"),
        ({"thinking_token_budget": 5}, "thinking_token_budget", "not supported"),
        ({"temprature": 1}, "temprature", "unknown field"),
    ],
)
def test_refused(make_service, fields, param, words):
    service = make_service(max_queue=2, unknown_fields="refuse")
    answer = service.http.post("/v1/completions", json={"prompt": "say", "max_tokens": 40, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert service.gateway.in_flight == 0


@pytest.mark.parametrize(
    "fields",
    [
        {
            "user": "u",
            "best_of": 1,
            "suffix": "",
            "logit_bias": {},
            "stop": None,
            "n": None,
            "stream": None,
            "stop_token_ids": [],
        }
    ],
)
def test_neutral_values_pass(service, fields):
    assert completion(service, **fields)["choices"][0]["text"] == "hello world"


def test_context_length(service):
    answer = service.http.post("/v1/completions", json={"prompt": "x" * 600})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 512 tokens" in error["message"]
    answer = service.http.post("/v1/completions", json={"prompt": "x" * 500, "max_tokens": 100})
    assert "you requested 601 tokens (501 in the prompt, 100 in the completion)" in answer.text
    assert (
        service.http.post("/v1/completions", json={"prompt": "x" * 510}).json()["usage"]["completion_tokens"]
        == 1
    )


def test_unknown_model(service):
    with pytest.raises(openai.NotFoundError) as error:
        service.openai.completions.create(model="other", prompt="say")
    assert error.value.code == "model_not_found"


def test_rejected_by_the_engine(service):
    service.engine.reject = "too long for one sequence's blocks"
    answer = service.http.post("/v1/completions", json={"prompt": "say", "stream": True})
    assert answer.status_code == 400
    assert "blocks" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("status", "code", "shown"),
    [
        (429, "queue_full", True),
        (503, "queue_timeout", True),
        (500, "internal_error", False),
    ],
)
def test_what_is_no_fault_of_the_request_is_no_400(service, caplog, status, code, shown):
    service.engine.reject, service.engine.reject_status = "the processes were lost", status
    answer = service.http.post("/v1/completions", json={"prompt": "a"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert ("were lost" in error["message"]) == shown
    assert ("were lost" in caplog.text) != shown
