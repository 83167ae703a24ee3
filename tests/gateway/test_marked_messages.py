"""Marks by which other servers' clients have the last message continued, on every path of conversations."""

from __future__ import annotations

import array
import json

import pytest

from firelane.api.chat import ChatRequest
from firelane.api.decode import BodyDecoder
from tests.gateway.hostile_fields import CHAT, MESSAGES, OLLAMA_CHAT, RESPONSES, RUN, USER

PATHS = {
    "chat": (CHAT, "messages", {}),
    "responses": (RESPONSES, "input", {}),
    "messages": (MESSAGES, "messages", {"max_tokens": 20}),
    "ollama chat": (OLLAMA_CHAT, "messages", {"model": "toy", "stream": False}),
    "workers": (RUN, "messages", {}),
}
EVERYWHERE = pytest.mark.parametrize("path", PATHS)
BOTH_MARKS = pytest.mark.parametrize("mark", ["prefix", "partial"])


def ask(service, path, *messages, **fields):
    url, conversation, needed = PATHS[path]
    return service.http.post(url, json={conversation: list(messages), **needed, **fields})


def prompt(service) -> str:
    ids = array.array("i", service.engine.submitted[-1].prompt).tolist()
    return service.core.decode(ids, skip_special_tokens=False)


def said(text, **marks):
    return {"role": "assistant", "content": text, **marks}


@EVERYWHERE
@BOTH_MARKS
def test_the_last_message_goes_on(service, path, mark):
    answer = ask(service, path, *USER, said("So it is: ", **{mark: True}))
    assert answer.status_code == 200, answer.text
    assert prompt(service).endswith("<|assistant|>So it is: ")
    assert "x-ignored-fields" not in answer.headers


@EVERYWHERE
def test_a_mark_that_is_not_set(service, path):
    assert ask(service, path, *USER, said("One."), *USER).status_code == 200
    plain = prompt(service)
    marked = ask(service, path, *USER, said("One.", prefix=False, partial=None), *USER)
    assert (marked.status_code, prompt(service)) == (200, plain)
    assert "x-ignored-fields" not in marked.headers


@EVERYWHERE
@BOTH_MARKS
def test_a_mark_in_the_history_is_named(service, path, mark):
    answer = ask(service, path, *USER, said("One.", **{mark: True}), *USER)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == f"{PATHS[path][1]}[].{mark}"
    assert prompt(service).endswith("<|assistant|>")


@EVERYWHERE
def test_what_cannot_go_on_is_refused(service, path):
    assert ask(service, path, *USER, said("", prefix=True)).status_code == 400
    answer = ask(service, path, {"role": "user", "content": "hi", "partial": True})
    assert answer.status_code == 400
    assert "`partial` of the last message needs that message to be the assistant's" in answer.text
    assert not service.engine.submitted


@EVERYWHERE
def test_the_field_of_chat_is_not_left_out_elsewhere(service, path):
    """It would be a new answer, where the client asks for the rest of one."""
    answer = ask(service, path, *USER, said("So "), continue_final_message=True)
    if path == "chat":
        assert prompt(service).endswith("<|assistant|>So ")
    else:
        assert answer.status_code == 400
        assert "say `prefix`: true in the last message" in answer.text


def test_marks_and_fields_that_say_something_else(service):
    last = said("So ", prefix=True)
    refused = ask(service, "chat", *USER, last, continue_final_message=False)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
    assert ask(service, "chat", *USER, last, add_generation_prompt=True).status_code == 400
    assert ask(service, "chat", *USER, last, add_generation_prompt=False).status_code == 200


def test_the_marked_message_is_echoed(service):
    answer = ask(service, "chat", *USER, said("So: ", prefix=True), echo=True).json()
    assert answer["choices"][0]["message"]["content"].startswith("So: ")


def test_a_call_cannot_go_on(service):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = ask(service, "chat", *USER, said("Text", tool_calls=[call], prefix=True))
    assert answer.status_code == 400


def test_tokens_of_a_marked_message(service):
    body = {"messages": [*USER, said("So it is: ", partial=True)]}
    ids = service.http.post("/tokenize", json=body).json()["tokens"]
    assert service.core.decode(ids, skip_special_tokens=False).endswith("<|assistant|>So it is: ")


def test_a_marked_item_and_its_answer_are_one_text(service):
    first = ask(service, "responses", *USER, said("So it is: ", prefix=True)).json()
    second = ask(service, "responses", *USER, previous_response_id=first["id"])
    assert second.status_code == 200, second.text
    answer = first["output"][-1]["content"][0]["text"]
    assert f"<|assistant|>So it is: {answer}" in prompt(service)
    assert "x-ignored-fields" not in second.headers


def test_a_long_conversation_that_is_decoded_in_parts():
    history = [*USER, said("y" * 90)] * 3000
    body = json.dumps({"messages": [*history, *USER, said("So ", prefix=True)], "unknown": 1}).encode()
    request, left_out = BodyDecoder(ChatRequest).decode_large(body, strict=False)
    request.check()
    assert (request.continue_final_message, left_out) == (True, ["unknown"])
