"""/tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

import array
from typing import Any

import pytest

from firelane.gateway.config import HttpLimits
from firelane.text.tokens.tokenizer import PIECE_CHARS, Tokenizer

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
    assert post(service, "/detokenize", tokens=bare["tokens"])["prompt"] == "hi"


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
    assert post(service, "/detokenize", tokens=[])["prompt"] == ""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a b" * 500_000}),
        ("/v1/completions", {"prompt": ["a", "a b" * 500_000]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b" * 500_000}]}),
        ("/v1/responses", {"input": "a b" * 500_000}),
        ("/v1/embeddings", {"input": "a b" * 500_000}),
        ("/client/v4/accounts/a/ai/run/toy", {"prompt": "a b" * 500_000}),
        ("/client/v4/accounts/a/ai/run/toy", {"prompt": "a b" * 500_000, "raw": True}),
        ("/tokenize", {"prompt": "a b" * 500_000}),
    ],
)
def test_a_text_that_cannot_fit_is_never_tokenised_whole(make_service, monkeypatch, path, body):
    service = make_service(limits=HttpLimits())
    seen: list[int] = []

    def noting(method):
        return lambda self, text, **more: seen.append(len(text)) or method(self, text, **more)

    for name in ("encode", "count"):
        monkeypatch.setattr(Tokenizer, name, noting(getattr(Tokenizer, name)))
    answer = service.http.post(path, json=body)
    assert answer.status_code == 400
    assert "tokens" in answer.text
    assert 0 < max(seen) <= PIECE_CHARS
    assert service.gateway.in_flight == 0


def test_a_long_text_is_cut_where_the_request_asks_for_it(make_service):
    service = make_service(limits=HttpLimits())
    body = {"prompt": "a b" * 500_000 + "end", "truncate_prompt_tokens": 5, "max_tokens": 1}
    assert service.http.post("/v1/completions", json=body).status_code == 200
    sent = array.array("i", service.engine.submitted[-1].prompt).tolist()
    assert sent == service.ids("a bend")[-5:]
    more = {"input": "a b" * 500_000, "truncate_prompt_tokens": -1}
    assert service.http.post("/v1/embeddings", json=more).json()["usage"]["prompt_tokens"] == 512
