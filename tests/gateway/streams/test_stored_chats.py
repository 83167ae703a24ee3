"""Stored chat completions through the official client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from streams_support import CHAT, follow, go_on, steps

HI: list[Any] = [{"role": "user", "content": "hi"}]


def create(service: Any, **body: Any) -> Any:
    return service.openai.chat.completions.create(model="toy", messages=HI, store=True, **body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_answer_is_read_again(service, stream):
    if stream:
        chunks = list(create(service, stream=True, metadata={"a": "b"}, temperature=0.5))
        answer_id = chunks[0].id
    else:
        answer_id = create(service, metadata={"a": "b"}, temperature=0.5).id
    found = service.openai.chat.completions.retrieve(answer_id)
    assert found.choices[0].message.content == "hello world"
    assert found.choices[0].finish_reason == "stop"
    assert found.usage.completion_tokens > 0
    assert found.metadata == {"a": "b"}
    assert found.temperature == 0.5
    assert found.id == answer_id


def test_a_stream_is_stored_as_the_answer_in_one_piece(service):
    body = {"seed": 7, "logprobs": True, "top_logprobs": 2, "n": 2}
    plain = service.http.post(CHAT, json={"messages": HI, **body}).json()
    with service.openai.chat.completions.with_streaming_response.create(
        model="toy", messages=HI, store=True, stream=True, **body
    ) as answer:
        answer_id = answer.headers["x-stream-id"]
        answer.read()
    stored = service.http.get(f"{CHAT}/{answer_id}", headers={"authorization": "Bearer k"}).json()
    assert {name: stored[name] for name in plain if name not in ("id", "created", "model")} == {
        name: value for name, value in plain.items() if name not in ("id", "created", "model")
    }


def test_without_store_nothing_is_stored(service):
    made = service.openai.chat.completions.create(model="toy", messages=HI)
    with pytest.raises(openai.NotFoundError, match="store: true"):
        service.openai.chat.completions.retrieve(made.id)
    assert list(service.openai.chat.completions.list()) == []


def test_lists(service):
    made = [create(service, metadata={"n": str(number), "all": "yes"}).id for number in range(5)]
    create_other = service.openai.chat.completions.create(model="alias", messages=HI, store=True).id
    listed = service.openai.chat.completions.list
    assert [one.id for one in listed()] == [*made, create_other]
    assert [one.id for one in listed(order="desc", limit=2)] == [create_other, *reversed(made)]
    assert [one.id for one in listed(model="alias")] == [create_other]
    assert [one.id for one in listed(metadata={"n": "3", "all": "yes"})] == [made[3]]
    assert [one.id for one in listed(metadata={"all": "yes"}, after=made[2])] == made[3:]
    assert listed(limit=2).has_more


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=up", "order"),
        ("after=chatcmpl-none", "no such entry"),
        ("metadata=x", "unknown query field"),
        ("metadata[=x", "unknown query field"),
        ("&".join(f"metadata[{number}]=x" for number in range(40)), "16 fields"),
    ],
)
def test_wrong_lists(service, query, message):
    create(service)
    answer = service.http.get(f"{CHAT}?{query}", headers={"authorization": "Bearer k"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_messages(service):
    messages: list[Any] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "me"},
    ]
    made = service.openai.chat.completions.create(model="toy", messages=messages, store=True)
    first, second = service.openai.chat.completions.messages.list(made.id)
    assert (first.id, first.role, first.content, first.content_parts) == (
        f"{made.id}-0",
        "system",
        "be brief",
        None,
    )
    assert (second.id, second.content, second.name) == (f"{made.id}-1", None, "me")
    assert second.content_parts[0].text == "hi"
    after = service.openai.chat.completions.messages.list(made.id, after=first.id, limit=1)
    assert [one.id for one in after] == [second.id]


def test_metadata_changes(service):
    made = create(service, metadata={"a": "b"})
    changed = service.openai.chat.completions.update(made.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"}
    assert changed.choices[0].message.content == "hello world"
    assert service.openai.chat.completions.retrieve(made.id).metadata == {"c": "d"}
    with pytest.raises(openai.BadRequestError):
        service.openai.chat.completions.update(made.id, metadata={"c": "d" * 600})


def test_deletes(service):
    made, kept = create(service), create(service)
    assert service.openai.chat.completions.delete(made.id).deleted
    for act in (
        service.openai.chat.completions.retrieve,
        service.openai.chat.completions.delete,
        service.openai.chat.completions.messages.list,
    ):
        with pytest.raises(openai.NotFoundError):
            act(made.id)
    assert service.openai.chat.completions.retrieve(kept.id).id == kept.id


@pytest.mark.parametrize("body", [{"store": "yes"}, {"store": True, "metadata": {"a": 1}}])
def test_what_cannot_be_stored_is_refused(service, body):
    answer = service.http.post(CHAT, json={"messages": HI, **body})
    assert answer.status_code == 400
    assert service.engine.submitted == []


def test_metadata_without_store_is_not_looked_at(service):
    assert service.http.post(CHAT, json={"messages": HI, "metadata": {"a": 1}}).status_code == 200


def test_nobody_sees_another_key_s(service):
    made = create(service)
    other = service.openai.with_options(api_key="other").chat.completions
    assert list(other.list()) == []
    for act in (other.retrieve, other.delete, other.messages.list):
        with pytest.raises(openai.NotFoundError):
            act(made.id)
    with pytest.raises(openai.NotFoundError):
        other.update(made.id, metadata={})
    assert service.openai.chat.completions.retrieve(made.id).metadata == {}


def test_a_server_that_keeps_none_says_so(make_service):
    service = make_service(max_stored_responses=0)
    with pytest.raises(openai.BadRequestError, match="max_stored_responses = 0"):
        create(service)


def test_the_oldest_go_first(make_service):
    service = make_service(max_stored_responses=2)
    made = [create(service).id for _ in range(3)]
    assert [one.id for one in service.openai.chat.completions.list()] == made[1:]


def test_while_it_is_made_its_stream_can_be_read(held):
    with create(held, stream=True) as stream:
        steps(held, 2)
        answer_id = next(iter(stream)).id
    auth = {"authorization": "Bearer k"}
    early = held.http.get(f"{CHAT}/{answer_id}", headers=auth)
    assert early.status_code == 400
    assert "stream=true" in early.json()["error"]["message"]
    with follow(held, answer_id, headers=auth) as reader:
        go_on(held)
        whole = reader.rest()
    chunks = [json.loads(e.partition(b"data: ")[2]) for e in whole.split(b"\n\n")[:-2]]
    text = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
    assert held.openai.chat.completions.retrieve(answer_id).choices[0].message.content == text
    assert text.startswith("a stream that has")


def test_the_client_reads_on_in_a_stream(held):
    """With the official client: the number of a chunk is its place."""
    with create(held, stream=True) as stream:
        steps(held, 4)
        chunks = [next(iter(stream)) for _ in range(3)]
    rest = held.openai.get(
        f"/chat/completions/{chunks[0].id}",
        cast_to=openai.types.chat.ChatCompletionChunk,
        stream=True,
        stream_cls=openai.Stream[openai.types.chat.ChatCompletionChunk],
        options={"params": {"stream": "true", "starting_after": len(chunks) - 1}},
    )
    go_on(held)
    chunks += rest
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text.startswith("a stream that has some tokens")
    assert chunks[-1].choices[0].finish_reason is not None


def test_an_answer_that_failed_is_not_stored(held):
    with create(held, stream=True) as stream:
        steps(held, 2)
        answer_id = next(iter(stream)).id
    held.http.delete(f"{CHAT}/{answer_id}", headers={"authorization": "Bearer k"})
    assert list(held.openai.chat.completions.list()) == []
    assert isinstance(held.http.get(CHAT), httpx.Response)
