"""/v1/responses through the official client, with a scripted engine."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import openai
import pytest


def create(service: Any, **body: Any) -> dict[str, Any]:
    """With the key of the official client, whose answers nobody else reads."""
    service.http.headers["authorization"] = "Bearer k"
    answer = service.http.post("/v1/responses", json={"model": "toy", "input": "hi", **body})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def prompts(service: Any) -> list[str]:
    ids = [memoryview(r.prompt).cast("i").tolist() for r in service.engine.submitted]
    return [service.core.decode(one, skip_special_tokens=False) for one in ids]


def test_answer(service):
    made = service.openai.responses.create(
        model="toy", input="hi", instructions="be brief", max_output_tokens=40, metadata={"a": "b"}
    )
    assert made.status == "completed"
    assert made.output_text == "hello world"
    assert made.usage.output_tokens == 12
    assert made.usage.input_tokens == len(service.engine.submitted[0].prompt) // 4
    assert made.instructions == "be brief"
    assert made.metadata == {"a": "b"}
    assert prompts(service)[0] == "<|bos|><|system|>be brief\n<|user|>hi\n<|assistant|>"


def test_stream(service):
    with service.openai.responses.stream(model="toy", input="hi") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "hello world"
    assert final.output_text == "hello world"
    assert final.usage.output_tokens == 12
    assert service.openai.responses.retrieve(final.id).output_text == "hello world"


def test_the_limit_leaves_it_incomplete(service):
    made = create(service, max_output_tokens=3)
    assert made["status"] == "incomplete"
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    kinds = [e.type for e in service.openai.responses.create(input="x", max_output_tokens=3, stream=True)]
    assert kinds[-1] == "response.incomplete"


def test_a_later_request_continues(service):
    first = create(service, input="one", instructions="be brief")
    second = create(service, input="two", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    create(service, input="three", previous_response_id=second["id"])
    assert prompts(service)[2] == (
        "<|bos|><|user|>one\n<|assistant|>hello world\n<|user|>two\n<|assistant|>hello world\n"
        "<|user|>three\n<|assistant|>"
    )
    items = service.openai.responses.input_items.list(second["id"], order="asc")
    assert [item.role for item in items] == ["user", "assistant", "user"]


def test_input_items_come_page_by_page(service):
    texts = [str(i) for i in range(25)]
    made = create(service, input=[{"role": "user", "content": text} for text in texts])
    page = service.openai.responses.input_items.list(made["id"], limit=10, order="asc")
    assert page.has_more
    read = [item.content[0].text for item in page]  # the client asks for the further pages itself
    assert read == texts
    url = f"/v1/responses/{made['id']}/input_items"
    assert service.http.get(url).json()["data"][0]["content"] == [{"type": "input_text", "text": "24"}]
    for query in ("limit=0", "limit=x", "order=up", "after=nobody", "where=here"):
        assert service.http.get(f"{url}?{query}").status_code == 400


def test_read_delete(service):
    made = create(service)
    assert service.http.get(f"/v1/responses/{made['id']}").json() == made
    assert service.http.post(f"/v1/responses/{made['id']}/cancel").status_code == 400
    gone = service.http.delete(f"/v1/responses/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        assert service.http.request(method, f"/v1/responses/{made['id']}").status_code == 404


def test_what_is_not_to_be_stored_is_not(service):
    made = create(service, store=False)
    assert made["store"] is False
    with pytest.raises(openai.NotFoundError, match="store: false"):
        service.openai.responses.create(input="x", previous_response_id=made["id"])
    assert len(service.gateway.services.kept.responses) == 0


def test_the_oldest_is_forgotten(make_service):
    service = make_service(max_stored_responses=2)
    ids = [create(service)["id"] for _ in range(3)]
    assert [service.http.get(f"/v1/responses/{i}").status_code for i in ids] == [404, 200, 200]


def test_a_server_that_stores_nothing_says_so(make_service):
    service = make_service(max_stored_responses=0)
    assert create(service)["store"] is False
    refused = service.http.post("/v1/responses", json={"input": "x", "store": True})
    assert refused.status_code == 400
    assert "max_stored_responses = 0" in refused.json()["error"]["message"]


def test_another_key_reads_nothing(service):
    mine, other = {"authorization": "Bearer mine"}, {"authorization": "Bearer other"}
    made = service.http.post("/v1/responses", json={"input": "x"}, headers=mine).json()
    url = f"/v1/responses/{made['id']}"
    assert service.http.get(url, headers=mine).status_code == 200
    for headers in (other, {"authorization": ""}):
        assert service.http.get(url, headers=headers).status_code == 404
        assert service.http.delete(url, headers=headers).status_code == 404
        body = {"input": "x", "previous_response_id": made["id"]}
        assert service.http.post("/v1/responses", json=body, headers=headers).status_code == 404


def test_logprobs(service):
    made = create(service, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = made["output"][0]["content"][0]["logprobs"]
    assert "".join(e["token"] for e in entries) == "hello world"
    assert len(entries[0]["top_logprobs"]) == 2
    stream = service.openai.responses.create(
        input="x", include=["message.output_text.logprobs"], top_logprobs=1, stream=True
    )
    deltas = [event for event in stream if event.type == "response.output_text.delta"]
    assert "".join(d.logprobs[0].token for d in deltas) == "hello world"


def test_input_tokens(service):
    counted = service.http.post("/v1/responses/input_tokens", json={"input": "hi"}).json()
    assert counted["input_tokens"] == create(service)["usage"]["input_tokens"]


def test_an_engine_that_dies_fails_the_stream(service):
    service.run(setattr, service.engine, "held", True)
    answers: list[httpx.Response] = []
    body = {"input": "x", "stream": True}
    thread = threading.Thread(target=lambda: answers.append(service.http.post("/v1/responses", json=body)))
    thread.start()
    service.wait_for(lambda: service.engine.running)
    service.run(service.engine.step)
    service.run(service.engine.die)
    thread.join(5)
    last = json.loads(answers[0].text.split("data: ")[-1])
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert len(service.gateway.services.kept.responses) == 0


def test_a_call_of_a_namespaces_function(service):
    """Codex asks in this way: the model reads one name, and the answer says whose function it is."""
    service.text = '<tool_call>{"name": "crm.find", "arguments": {}}</tool_call>'
    find = {"type": "function", "name": "find", "parameters": {"type": "object"}}
    space = {"type": "namespace", "name": "crm", "description": "x", "tools": [find]}
    tools = [find, space, {"type": "web_search", "external_web_access": True}]
    body = {"model": "toy", "input": "hi", "tools": tools, "include": ["reasoning.encrypted_content"]}
    answer = service.http.post("/v1/responses", json={**body, "client_metadata": {"a": "b"}})
    assert answer.headers["x-ignored-fields"] == "tools[2]"
    made = answer.json()
    assert (made["output"][0]["namespace"], made["output"][0]["name"]) == ("crm", "find")
    assert [tool["type"] for tool in made["tools"]] == ["function", "namespace"]
    again = [{"role": "user", "content": "hi"}, *made["output"]]
    again.append({"type": "function_call_output", "call_id": made["output"][0]["call_id"], "output": "12"})
    assert create(service, input=again, tools=tools)["status"] == "completed"
    assert '"name": "crm.find"' in prompts(service)[-1].replace("\\", "")
    plain = create(service, tools=[find])["output"][0]
    assert "namespace" not in plain


def test_errors_name_the_field(service):
    for body, field in (
        ({"input": "x", "background": True, "store": False}, "store"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "x", "model": "another"}, "model"),
        ({"input": "x", "previous_response_id": "resp_x"}, "previous_response_id"),
    ):
        answer = service.http.post("/v1/responses", json=body)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["param"] == field, answer.text
    assert service.engine.submitted == []


def test_truncation_leaves_the_first_items_out(service):
    texts = [f"{i}" * 60 for i in range(10)]
    items = [{"role": "user", "content": text} for text in texts]
    refused = service.http.post("/v1/responses", json={"input": items})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    made = create(service, input=items, truncation="auto", max_output_tokens=50, instructions="be brief")
    assert made["truncation"] == "auto"
    kept = prompts(service)[-1]
    assert kept.startswith("<|bos|><|system|>be brief\n<|user|>")
    assert [text for text in texts if text in kept] == texts[3:]
    assert 512 - 50 - 62 < made["usage"]["input_tokens"] <= 512 - 50
    second = create(service, input="go on", previous_response_id=made["id"], truncation="auto")
    assert prompts(service)[-1].endswith("<|assistant|>hello world\n<|user|>go on\n<|assistant|>")
    listed = service.openai.responses.input_items.list(second["id"], limit=100)
    assert len(list(listed)) == 12


def test_truncation_takes_outputs_with_their_calls(service):
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "x" * 100}
    items = [{"role": "user", "content": "a" * 400}, call, output, {"role": "user", "content": "b" * 400}]
    create(service, input=items, truncation="auto")
    assert prompts(service)[-1] == f"<|bos|><|user|>{'b' * 400}\n<|assistant|>"


def test_what_is_too_long_alone_is_refused(service):
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "x" * 600}
    for given in ("x" * 600, [call, output], [{"role": "user", "content": "x"}, call, output]):
        answer = service.http.post("/v1/responses", json={"input": given, "truncation": "auto"})
        assert answer.json()["error"]["code"] == "context_length_exceeded"
