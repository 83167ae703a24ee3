"""The defaults for sampling and for ends in a model's files reach the engine."""

from __future__ import annotations

import json
import math

import pytest

from tests.text.toy_model import write_model


def test_generation_defaults_fill_silent_fields(make_service, core, tmp_path):
    write_model(tmp_path, core)
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": 1, "temperature": 0.6, "top_p": 0.9})
    )
    service = make_service(model_dir=tmp_path)
    service.http.post("/v1/completions", json={"prompt": "a"})
    service.http.post("/v1/completions", json={"prompt": "a", "temperature": 0})
    first, second = (request.sampling for request in service.engine.submitted)
    assert (first.temperature, first.top_p) == (0.6, 0.9)
    assert (second.temperature, second.top_p) == (0.0, 0.9)


CHAT = {"messages": [{"role": "user", "content": "a"}]}
PLAIN, PERSON = (1.0, 0, 1.0, 0.0), (0.8, 40, 0.95, 0.05)
HEADER = {"x-sampling-defaults": "llama.cpp"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "expected"),
    [
        ("/v1/completions", {"prompt": "a"}, {}, PLAIN),
        ("/v1/chat/completions", CHAT, {}, PLAIN),
        ("/v1/responses", {"input": "a"}, {"x-sampling-defaults": "vllm"}, PLAIN),
        ("/v1/messages", {**CHAT, "model": "toy", "max_tokens": 5}, {}, PLAIN),
        ("/v1/completions", {"prompt": "a"}, HEADER, PERSON),
        ("/v1/chat/completions", CHAT, HEADER, PERSON),
        ("/v1/chat/completions", {**CHAT, "top_k": 0, "temperature": 1}, HEADER, (1.0, 0, 0.95, 0.05)),
        ("/api/chat", {**CHAT, "model": "toy"}, {}, PERSON),
        ("/api/generate", {"model": "toy", "prompt": "a", "raw": True}, {}, PERSON),
        ("/api/generate", {"model": "toy", "prompt": "a", "options": {"top_p": 1}}, {}, (0.8, 40, 1.0, 0.05)),
    ],
)
def test_values_that_nobody_names(service, path, body, headers, expected):
    """The author of this model advises nothing."""
    answer = service.http.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    drawn = service.engine.submitted[-1].sampling
    assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p) == pytest.approx(expected)


def test_defaults_of_nobody_are_refused(service):
    answer = service.http.post(
        "/v1/completions", json={"prompt": "a"}, headers={"x-sampling-defaults": "sglang"}
    )
    assert answer.status_code == 400
    assert "is 'sglang': use one of vllm, llama.cpp" in answer.json()["error"]["message"]


def test_end_of_the_tokenizer_ends_a_sequence_too(make_service, core, tmp_path):
    write_model(tmp_path, core)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 4}))
    service = make_service(model_dir=tmp_path)
    service.http.post("/v1/completions", json={"prompt": "a"})
    service.http.post("/v1/completions", json={"prompt": "a", "ignore_eos": True})
    first, second = (request.sampling for request in service.engine.submitted)
    assert first.stop_token_ids == [1, 4]
    assert second.stop_token_ids == []


def test_bad_defaults_do_not_reach_a_request(make_service, core, tmp_path):
    write_model(tmp_path, core)
    bad = {"eos_token_id": 1, "temperature": -1, "top_p": 5, "top_k": math.nan}
    (tmp_path / "generation_config.json").write_text(json.dumps(bad))
    service = make_service(model_dir=tmp_path)
    answer = service.http.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 200, answer.text
    assert service.engine.submitted[0].sampling.temperature == 1.0
