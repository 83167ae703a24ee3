"""/v1/conversations through the official client, with a scripted engine."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from firelane.gateway.conversations import conversation_store
from firelane.gateway.conversations.conversation_store import (
    ENTRY_BYTES,
    ConversationStore,
    StoredConversation,
)
from firelane.gateway.tenants.tenant import Tenant

ANNE = Tenant(name="anne")


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text, **fields}


def texts(service: Any, conversation: str) -> list[str]:
    listed = service.openai.conversations.items.list(conversation, order="asc", limit=7)
    return [item.content[0].text for item in listed]  # the client asks for the further pages itself


def prompts(service: Any) -> list[str]:
    ids = [memoryview(r.prompt).cast("i").tolist() for r in service.engine.submitted]
    return [service.core.decode(one, skip_special_tokens=False) for one in ids]


def test_life_of_a_conversation(service):
    conversations = service.openai.conversations
    made = conversations.create(items=[said("one")], metadata={"a": "b"})
    assert conversations.retrieve(made.id) == made
    assert made.metadata == {"a": "b"}
    assert conversations.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
    added = conversations.items.create(made.id, items=[said("two", id="msg_2"), said("three")])
    assert [item.content[0].text for item in added.data] == ["two", "three"]
    assert conversations.items.retrieve("msg_2", conversation_id=made.id).content[0].text == "two"
    assert conversations.items.delete("msg_2", conversation_id=made.id).metadata == {"c": "d"}
    assert texts(service, made.id) == ["one", "three"]
    assert conversations.delete(made.id).deleted
    for gone in (conversations.retrieve, conversations.delete, conversations.items.list):
        with pytest.raises(openai.NotFoundError, match="no conversation"):
            gone(made.id)


def test_responses_read_it_and_add_to_it(service):
    made = service.openai.conversations.create()
    first = service.openai.responses.create(input="one", conversation=made.id, store=False)
    assert first.conversation.id == made.id
    with service.openai.responses.stream(model="toy", input="two", conversation={"id": made.id}) as stream:
        assert stream.get_final_response().conversation.id == made.id
    assert prompts(service)[1] == ("<|bos|><|user|>one\n<|assistant|>hello world\n<|user|>two\n<|assistant|>")
    assert texts(service, made.id) == ["one", "hello world", "two", "hello world"]
    service.openai.conversations.items.create(made.id, items=[said("three")])
    service.openai.responses.create(conversation=made.id)
    assert prompts(service)[2].endswith("hello world\n<|user|>three\n<|assistant|>")


def test_items_come_page_by_page(service):
    words = [str(i) for i in range(18)]
    made = service.openai.conversations.create(items=[said(word) for word in words])
    assert texts(service, made.id) == words


def test_nobody_reads_anothers(service):
    made = service.openai.conversations.create(items=[said("one")])
    other = service.openai.with_options(api_key="another")
    for attempt in (
        lambda: other.conversations.retrieve(made.id),
        lambda: other.conversations.delete(made.id),
        lambda: other.conversations.items.create(made.id, items=[said("x")]),
        lambda: other.responses.create(input="x", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError) as error:
            attempt()
        assert error.value.code == "conversation_not_found"
    assert service.engine.submitted == []
    assert texts(service, made.id) == ["one"]


def test_limits_have_one_clear_line(service, monkeypatch):
    made = service.openai.conversations.create()
    monkeypatch.setattr(conversation_store, "MAX_ITEMS", 3)
    service.openai.conversations.items.create(made.id, items=[said("a"), said("b"), said("c")])
    monkeypatch.setattr(conversation_store, "MAX_ITEM_BYTES", 1000)
    for attempt in (
        lambda: service.openai.conversations.items.create(made.id, items=[said("d")]),
        lambda: service.openai.responses.create(input="d", conversation=made.id),
        lambda: service.openai.conversations.create(items=[said("x" * 1000)]),
    ):
        with pytest.raises(openai.BadRequestError, match="a conversation holds at most 3 items"):
            attempt()


REFUSED = {
    "too many": {"items": [said("x")] * 21},
    "no items": {"items": []},
    "no type that is known": {"items": [{"type": "mesage", "role": "user", "content": "x"}]},
    "number": {"items": 1},
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=list(REFUSED))
def test_wrong_items(service, body):
    made = service.openai.conversations.create()
    answer = service.http.post(
        f"/v1/conversations/{made.id}/items", json=body, headers={"authorization": "Bearer k"}
    )
    assert answer.status_code == 400
    assert "items" in answer.json()["error"]["param"]


def test_an_empty_conversation_needs_input(service):
    made = service.openai.conversations.create()
    with pytest.raises(openai.BadRequestError, match="the conversation is empty"):
        service.openai.responses.create(conversation=made.id)


def test_an_answer_to_a_conversation_that_has_gone_is_given_all_the_same(service):
    conversations = service.openai.conversations
    made = conversations.create()
    with service.openai.responses.stream(model="toy", input="x", conversation=made.id) as stream:
        next(iter(stream))
        conversations.delete(made.id)
        assert stream.get_final_response().output_text == "hello world"


def test_the_store_counts_its_bytes():
    store = ConversationStore(10, max_bytes=3 * ENTRY_BYTES)
    for i in range(5):
        about = conversation_store.ConversationObject(id=f"conv_{i}", created_at=0, metadata={})
        store.put(ANNE, StoredConversation(about, ()))
        store.check_integrity()
    assert len(store) == 3
    store.add(ANNE, "conv_4", [conversation_store.StoredItem("a", b"x" * 100)])
    store.add(ANNE, "conv_4", [conversation_store.StoredItem("a", b"y" * 100)])
    store.check_integrity()
    assert [item.json[:1] for item in store.get(ANNE, "conv_4").items] == [b"x"]
