"""/v1/messages/batches with Anthropic's client, in front of a scripted engine."""

from __future__ import annotations

import anthropic
import pytest
from batch_support import hold, hurry, line, start
from service import PATIENCE_S

from firelane.gateway.batches.records import BatchRecords
from firelane.gateway.tenants.keyfile import hashed

PATH = "/v1/messages/batches"
TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    hurry(monkeypatch)


@pytest.fixture
def kept(make_service, tmp_path):
    return make_service(data_dir=tmp_path / "data")


@pytest.fixture
def client(kept):
    made = client_of(kept)
    yield made
    made.close()


def client_of(service, key="k"):
    inner = anthropic.DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S)
    return anthropic.Anthropic(base_url=service.url, api_key=key, max_retries=0, http_client=inner)


def item(name, **params):
    return {"custom_id": name, "params": {"model": "toy", "max_tokens": 40, "messages": TALK, **params}}


def wait_for_end(service, client, batch_id):
    records: BatchRecords = service.gateway.services.batches.records
    own = batch_id.replace("msgbatch_", "batch_")
    service.wait_for(lambda: records[own].batch.status in ("completed", "cancelled", "expired", "failed"))
    return client.messages.batches.retrieve(batch_id)


def test_from_creation_to_results(kept, client):
    made = client.messages.batches.create(requests=[item("a"), item("b", max_tokens=3), item("c", top_k="x")])
    assert made.id.startswith("msgbatch_")
    assert (made.type, made.processing_status) == ("message_batch", "in_progress")
    assert made.request_counts.processing == 3
    assert made.results_url is None
    assert made.ended_at is None
    assert (made.expires_at - made.created_at).total_seconds() == 86400
    done = wait_for_end(kept, client, made.id)
    assert done.processing_status == "ended"
    assert done.ended_at >= done.created_at
    assert done.request_counts.model_dump() == {
        "processing": 0, "succeeded": 2, "errored": 1, "canceled": 0, "expired": 0,
    }  # fmt: skip
    results = {one.custom_id: one.result for one in client.messages.batches.results(made.id)}
    assert results["a"].message.content[0].text == "hello world"
    assert results["a"].message.stop_reason == "end_turn"
    assert results["b"].message.content[0].text == "hel"
    assert results["b"].message.stop_reason == "max_tokens"
    assert results["b"].message.usage.output_tokens == 3
    assert results["c"].type == "errored"
    assert results["c"].error.error.type == "invalid_request_error"
    assert "top_k" in results["c"].error.error.message
    assert all(request.background for request in kept.engine.submitted)


def test_requests_with_line_breaks_in_their_json(kept, client):
    body = b"""{"requests": [{"custom_id": "a", "params":
        {"model": "toy",
         "max_tokens": 3, "messages": [{"role": "user", "content": "one\\ntwo"}]}}]}"""
    answer = kept.http.post(PATH, content=body)
    assert answer.status_code == 200, answer.text
    wait_for_end(kept, client, answer.json()["id"])
    (result,) = client.messages.batches.results(answer.json()["id"])
    assert result.result.type == "succeeded"


def test_cancel(kept, client):
    hold(kept)
    made = client.messages.batches.create(requests=[item(f"r{i}") for i in range(30)])
    kept.wait_for(lambda: kept.engine.submitted)
    stopped = client.messages.batches.cancel(made.id)
    assert stopped.cancel_initiated_at is not None
    assert stopped.processing_status in ("canceling", "ended")
    assert (
        client.messages.batches.cancel(made.id).id == made.id
        if stopped.processing_status != "ended"
        else True
    )
    hold(kept, held=False)
    done = wait_for_end(kept, client, made.id)
    counts = done.request_counts
    assert counts.canceled > 0
    assert counts.canceled + counts.succeeded == 30
    kinds = [one.result.type for one in client.messages.batches.results(made.id)]
    assert kinds.count("canceled") == counts.canceled
    assert len(kinds) == 30


def test_list_by_pages(kept, client):
    made = [client.messages.batches.create(requests=[item("a")]).id for _ in range(5)]
    wait_for_end(kept, client, made[-1])
    newest = list(reversed(made))
    assert [batch.id for batch in client.messages.batches.list(limit=2)] == newest
    page = client.messages.batches.list(limit=2, after_id=newest[1])
    assert [batch.id for batch in page.data] == newest[2:4]
    assert page.has_more
    back = client.messages.batches.list(limit=2, before_id=newest[3])
    assert [batch.id for batch in back.data] == newest[1:3]
    assert (back.first_id, back.last_id) == (newest[1], newest[2])
    assert kept.http.get(PATH, params={"limit": 0}).status_code == 400
    assert kept.http.get(PATH, params={"after_id": "none"}).status_code == 400


def test_delete(kept, client):
    hold(kept)
    made = client.messages.batches.create(requests=[item("a")])
    with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
        client.messages.batches.delete(made.id)
    early = kept.http.get(f"{PATH}/{made.id}/results")
    assert early.status_code == 400
    assert "`results_url`" in early.json()["error"]["message"]
    hold(kept, held=False)
    wait_for_end(kept, client, made.id)
    gone = client.messages.batches.delete(made.id)
    assert (gone.id, gone.type) == (made.id, "message_batch_deleted")
    assert list(client.messages.batches.list()) == []
    assert list(kept.openai.files.list()) == []
    for call in (
        client.messages.batches.retrieve,
        client.messages.batches.delete,
        client.messages.batches.cancel,
    ):
        with pytest.raises(anthropic.NotFoundError):
            call(made.id)


def test_batches_of_other_kinds_are_apart(kept, client):
    other = start(kept, [line("a")])
    own = client.messages.batches.create(requests=[item("a")])
    assert [batch.id for batch in client.messages.batches.list()] == [own.id]
    assert [batch.id for batch in kept.openai.batches.list()] == [other.id]
    for name in (other.id, other.id.replace("batch_", "msgbatch_"), own.id.replace("msgbatch_", "batch_")):
        assert kept.http.get(f"{PATH}/{name}").status_code == 404
    wait_for_end(kept, client, own.id)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": [item("a"), item("a")]}, "was used before"),
        ({"requests": [item("a", stream=True)]}, "in one piece"),
        ({"requests": [{"custom_id": "a", "params": []}]}, "not an object"),
        ({"requests": [{"custom_id": "a", "params": None}]}, "not an object"),
        ({"requests": [{"custom_id": "a"}]}, "params"),
        ({"requests": [{"custom_id": "", "params": {}}]}, "custom_id"),
        ({"requests": [{"custom_id": "x" * 65, "params": {}}]}, "custom_id"),
        ({"requests": "x"}, "requests"),
        ([], "object"),
    ],
)
def test_refused(kept, body, words):
    answer = kept.http.post(PATH, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["type"] == "error"
    assert words in answer.json()["error"]["message"]
    assert kept.http.get(PATH).json() == {"data": [], "has_more": False, "first_id": None, "last_id": None}
    assert list(kept.openai.files.list()) == []


def test_nobody_sees_anothers(make_service, tmp_path):
    names = {"acme": "key-of-acme-for-the-tests-1", "other": "key-of-other-for-the-tests-1"}
    path = tmp_path / "keys.toml"
    path.write_text("".join(f'[tenants.{name}]\nkeys = ["{hashed(key)}"]\n' for name, key in names.items()))
    service = make_service(data_dir=tmp_path / "data", api_keys=path)
    mine, theirs = (client_of(service, key) for key in names.values())
    with mine, theirs:
        made = mine.messages.batches.create(requests=[item("a")])
        wait_for_end(service, mine, made.id)
        assert list(theirs.messages.batches.list()) == []
        for call in (theirs.messages.batches.retrieve, theirs.messages.batches.cancel):
            with pytest.raises(anthropic.NotFoundError):
                call(made.id)
        assert service.http.get(f"{PATH}/{made.id}/results").status_code == 401
        assert mine.messages.batches.retrieve(made.id).id == made.id


def test_a_server_without_a_place_for_them_says_so(service):
    answer = service.http.post(PATH, json={"requests": [item("a")]})
    assert answer.status_code in (400, 503, 529)
    assert answer.json()["type"] == "error"
    assert service.http.put(PATH, json={}).status_code == 405
