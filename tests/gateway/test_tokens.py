"""/tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Any

import pytest

ASK = [{"role": "user", "content": "hi"}]


def post(service: Any, path: str, **body: Any) -> Any:
    answer = service.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_prompt(service):
    made = post(service, "/tokenize", prompt="hi", model="toy")
    assert made["count"] == len(made["tokens"]) == 3
    assert made["max_model_len"] == 512
    assert made["token_strs"] is None
    bare = post(service, "/tokenize", prompt="hi", add_special_tokens=False, return_token_strs=True)
    assert bare["token_strs"] == ["h", "i"]
    assert post(service, "/detokenize", tokens=bare["tokens"]) == {"prompt": "hi"}


def test_messages(service):
    made = post(service, "/tokenize", messages=ASK)
    assert post(service, "/detokenize", tokens=made["tokens"])["prompt"] == (
        "<|bos|><|user|>hi\n<|assistant|>"
    )
    bare = post(service, "/tokenize", messages=ASK, add_generation_prompt=False)
    assert bare["count"] == made["count"] - 1
    said = [*ASK, {"role": "assistant", "content": "well"}]
    going_on = post(service, "/tokenize", messages=said, continue_final_message=True)
    text = post(service, "/detokenize", tokens=going_on["tokens"])["prompt"]
    assert text.endswith("<|assistant|>well")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "x", "messages": ASK},
        {"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"prompt": "x", "chat_template": "{{ 1 }}"},
        {"messages": []},
        {"prompt": 3},
    ],
)
def test_refused(service, body):
    assert service.http.post("/tokenize", json=body).status_code == 400


def test_ids_out_of_the_vocabulary_are_refused(service):
    known = service.link.ready.vocab_size
    assert post(service, "/detokenize", tokens=[known - 1])["prompt"]
    for token in (known, 2**31 - 1, 2**31, -1):
        answer = service.http.post("/detokenize", json={"tokens": [token]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("tokens")
    assert post(service, "/detokenize", tokens=[]) == {"prompt": ""}
