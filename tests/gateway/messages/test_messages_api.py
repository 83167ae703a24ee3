"""/v1/messages: what it takes and what it answers."""

from __future__ import annotations

import threading

import pytest
from messages_support import TOOL, ask, events, refused, told, turns
from taught_model import CALL, prompt

from firelane.engine_state import LinkState
from firelane.gateway.requests.admission import HELD
from firelane.gateway.tenants.keyfile import hashed

USED = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}


def result(content="12", **more):
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def test_a_message(service):
    service.engine.cached_tokens = 2
    answer = ask(service, metadata={"user_id": "u"})
    body = answer.json()
    assert body.pop("id").startswith("msg_")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "content": [{"type": "text", "text": "hello world"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 12,
            "output_tokens_details": {"thinking_tokens": 0},
            "service_tier": "standard",
        },
    }
    assert prompt(service) == "<|bos|><|user|>hi\n<|assistant|>"


def test_how_an_answer_ends(service):
    assert told(service, max_tokens=5)["stop_reason"] == "max_tokens"
    body = told(service, stop_sequences=["x", "o w"])
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "o w")
    assert body["content"] == [{"type": "text", "text": "hell"}]
    service.text = "on and on " * 100
    assert told(service, max_tokens=32_000)["stop_reason"] == "model_context_window_exceeded"
    assert service.engine.submitted[-1].sampling.max_tokens == 512 - 6


def test_sampling(service):
    told(service, temperature=0.25, top_p=0.5, top_k=7)
    sampling = service.engine.submitted[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 7)


def test_a_system_prompt_is_a_text_or_blocks(service):
    told(service, system="Be brief.")
    assert prompt(service).startswith("<|bos|><|system|>Be brief.\n<|user|>")
    cached = {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=4f1;"}
    told(service, system=[billing, {"type": "text", "text": "Be brief."}, cached])
    assert prompt(service).startswith("<|bos|><|system|>Be brief.\n\nBe kind.\n<|user|>")


def test_neighbours_of_one_role_are_one_turn(service):
    user = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    told(service, messages=[user, {"role": "user", "content": "c"}, *turns("d", "e", "f")])
    assert prompt(service) == "<|bos|><|user|>a\nb\nc\nd\n<|assistant|>e\n<|user|>f\n<|assistant|>"
    told(service, messages=[*turns("a"), {"role": "system", "content": "now"}])
    assert "<|system|>now" in prompt(service)


def test_a_last_message_of_the_assistant_is_continued(service):
    told(service, "hi", "I say: ")
    assert prompt(service) == "<|bos|><|user|>hi\n<|assistant|>I say: "


def test_a_stream(service):
    service.engine.cached_tokens = 2
    start, ping, opened, *pieces, closed, delta, stop = events(ask(service, stream=True))
    message = start["message"]
    assert (message["content"], message["stop_reason"], message["model"]) == ([], None, "toy")
    assert (message["usage"]["input_tokens"], message["usage"]["cache_read_input_tokens"]) == (4, 2)
    assert ping == {"type": "ping"}
    assert opened == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert {piece["delta"]["type"] for piece in pieces} == {"text_delta"}
    assert "".join(piece["delta"]["text"] for piece in pieces) == "hello world"
    assert closed == {"type": "content_block_stop", "index": 0}
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 12
    assert stop == {"type": "message_stop"}


def test_a_streamed_stop_sequence(service):
    *pieces, delta, _ = events(ask(service, stream=True, stop_sequences=["wor"]))
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "wor"}
    assert "".join(piece["delta"]["text"] for piece in pieces if "delta" in piece) == "hello "


def test_an_answer_of_nothing_has_an_empty_text(service):
    service.text = ""
    assert told(service)["content"] == [{"type": "text", "text": ""}]
    kinds = [event["type"] for event in events(ask(service, stream=True))]
    assert kinds[2:4] == ["content_block_start", "content_block_stop"]


def test_a_tool_is_used(taught):
    body = told(taught, tools=[TOOL])
    (block,) = body["content"]
    assert block.pop("id").startswith("call_")
    assert block == {"type": "tool_use", "name": "weather", "input": {"city": "Zürich"}}
    assert body["stop_reason"] == "tool_use"
    assert '"name": "weather"' in prompt(taught)


def test_a_streamed_tool(taught):
    taught.text = "Let me see." + CALL
    got = events(ask(taught, stream=True, tools=[TOOL]))
    starts = [event["content_block"] for event in got if event["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == ["text", "tool_use"]
    assert starts[1]["input"] == {}
    pieces = [event["delta"] for event in got if event["type"] == "content_block_delta"]
    assert "".join(p.get("partial_json", "") for p in pieces) == '{"city": "Zürich"}'
    assert [event["index"] for event in got if event["type"] == "content_block_stop"] == [0, 1]
    assert got[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ([result()], "[toolu_1]12"),
        ([result([{"type": "text", "text": "1"}, {"type": "text", "text": "2"}])], "[toolu_1]1\n2"),
        ([result("no such city", is_error=True)], "[toolu_1]Error: no such city"),
        ([result(None)], "[toolu_1]"),
        ([{"type": "text", "text": "well?"}, result()], "[toolu_1]12<|user|>well?"),
    ],
)
def test_results_of_tools(taught, content, shown):
    called = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "So"}, USED]
    told(taught, "q", called, content, tools=[TOOL])
    assert f"<|assistant|>(hm)So<tool_call>weather:Bern<|user|>{shown}<|assistant|>" in prompt(taught)


def test_which_tools_may_be_used(taught):
    other = {"name": "other", "input_schema": {"type": "object"}, "type": "custom"}
    for choice, grammar in (("any", True), ("auto", False)):
        told(taught, tools=[TOOL, other], tool_choice={"type": choice})
        assert (taught.engine.submitted[-1].grammar is not None) is grammar
    told(taught, tools=[TOOL, other], tool_choice={"type": "tool", "name": "weather"})
    assert "other" not in taught.engine.submitted[-1].grammar.text
    taught.text = CALL + CALL
    assert len(told(taught, tools=[TOOL])["content"]) == 2
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(told(taught, tools=[TOOL], tool_choice=one)["content"]) == 1
    assert told(taught, tools=[TOOL], tool_choice={"type": "none"})["content"][0]["type"] == "text"


def test_tools_of_anthropics_servers_are_left_out(taught):
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    answer = ask(taught, tools=[search, TOOL])
    assert answer.headers["x-ignored-fields"] == "tools[0]"
    assert "web_search" not in prompt(taught)
    refused(ask(taught, tools=[search], tool_choice={"type": "any"}), 400, "invalid_request_error")
    assert told(taught, tools=[search], tool_choice={"type": "auto"})["stop_reason"] == "end_turn"


def test_thinking(taught):
    taught.text = "<think>\nhm, hm\n</think>\n\nyes"
    body = told(taught, thinking={"type": "enabled", "budget_tokens": 1024})
    thought, text = body["content"]
    assert (thought["type"], thought["thinking"], bool(thought["signature"])) == (
        "thinking",
        "hm, hm\n",
        True,
    )
    assert text == {"type": "text", "text": "yes"}
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] > 5
    got = events(ask(taught, stream=True, thinking={"type": "adaptive"}))
    kinds = [event["delta"]["type"] for event in got if event["type"] == "content_block_delta"]
    assert list(dict.fromkeys(kinds)) == ["thinking_delta", "signature_delta", "text_delta"]
    hidden = told(taught, thinking={"type": "adaptive", "display": "omitted"})
    assert [block["type"] for block in hidden["content"]] == ["text"]
    told(taught, thinking={"type": "disabled"})
    assert prompt(taught).endswith("<think>\n\n</think>\n\n")


def test_an_output_format(service):
    service.text = "{}"
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        told(service, **fields)
        assert service.engine.submitted[-1].grammar.kind == "json_schema"


def test_what_changes_nothing_is_taken(service):
    fields = {
        "context_management": {"edits": []},
        "service_tier": "auto",
        "output_config": {"effort": "max"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "cache_control": {"type": "ephemeral"},
        "betas": ["x"],
    }
    body = {"model": "toy", "max_tokens": 9, "messages": turns("hi"), **fields}
    answer = service.http.post("/v1/messages?beta=true", json=body, headers={"anthropic-beta": "a,b"})
    assert answer.status_code == 200
    told_of = {*", ".join(answer.headers.get_list("x-ignored-fields")).split(", ")}
    assert told_of == {"betas", "context_management", "service_tier", "output_config.effort"}


def test_a_budget_that_cannot_be_kept_is_named(taught):
    """The marks of this model's reasoning are several tokens."""
    answer = ask(taught, thinking={"type": "enabled", "budget_tokens": 1024})
    assert answer.headers["x-ignored-fields"] == "thinking.budget_tokens"


def test_counted_tokens(service):
    body = {"model": "toy", "messages": turns("hi"), "system": "Be brief.", "tools": [TOOL]}
    answer = service.http.post("/v1/messages/count_tokens?beta=true", json=body)
    assert answer.json() == {"input_tokens": told(service, **body)["usage"]["input_tokens"]}
    plain = {**body, "messages": turns("hi", [USED]), "tools": None}
    assert service.http.post("/v1/messages/count_tokens", json=plain).status_code == 200
    refused(service.http.post("/v1/messages/count_tokens", json={}), 400, "invalid_request_error")


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": turns([PICTURE])}, "the last message has a part of type 'image'"),
        ({"messages": turns([{"type": "document", "source": {}}])}, "'document'"),
        ({"messages": turns([{"type": "tool_addition", "tool": {}}])}, "messages[0].content[0]"),
        ({"messages": turns([result()])}, "no tool_use of id 'toolu_1'"),
        ({"messages": turns([{"type": "tool_result"}])}, "tool_use_id"),
        ({"messages": turns("q", [{"type": "tool_use", "id": "a", "name": "b"}])}, "input"),
        ({"messages": turns("q", [USED])}, "ends with no text"),
        ({"messages": turns("q", "")}, "ends with no text"),
        ({"messages": turns([{"type": "text"}])}, "messages[0].content[0].text"),
        ({"system": [PICTURE]}, "system[0]"),
        ({"temperature": 3}, "temperature"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "weather"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ],
)
def test_refused(service, fields, word):
    assert word in refused(ask(service, **fields), 400, "invalid_request_error")
    assert service.gateway.in_flight == 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}, "of another form"]
)
def test_a_part_of_a_conversation_is_refused_with_the_code_that_clients_know(service, path, thread):
    answered = [{"role": "user", "content": [result()]}]
    body = {"model": "toy", "messages": answered, "thread": thread}
    body |= {"max_tokens": 9} if path == "/v1/messages" else {}
    answer = service.http.post(path, json=body)
    assert "`thread`" in refused(answer, 400, "invalid_request_error")
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
    body["messages"][0]["content"] = "hi"
    assert service.http.post(path, json=body | {"thread": None}).status_code == 200


def test_errors_have_anthropics_form(make_service, tmp_path):
    digest = hashed("secret" * 5)
    keys = f'[tenants.acme]\nkeys = ["{digest}"]\nrequests_per_minute = 2\nmodels = ["toy"]\n'
    (tmp_path / "keys.toml").write_text(keys)
    service = make_service(api_keys=tmp_path / "keys.toml")
    refused(ask(service), 401, "authentication_error")
    service.http.headers["x-api-key"] = "secret" * 5
    refused(ask(service, model="claude-opus-4-8"), 404, "not_found_error")
    refused(ask(service, "x" * 200_000), 413, "request_too_large")
    assert told(service)["stop_reason"] == "end_turn"
    count = {"model": "toy", "messages": turns("hi")}
    assert service.http.post("/v1/messages/count_tokens", json=count).status_code == 200
    answer = ask(service)
    refused(answer, 429, "rate_limit_error")
    assert int(answer.headers["retry-after"]) > 0


def test_a_full_queue_and_a_dead_engine_are_overload(service):
    service.model.admission.draining = True
    refused(ask(service), 529, "overloaded_error")
    service.model.admission.draining = False
    service.model.admission.record.own[HELD] = 10_000
    refused(ask(service), 529, "overloaded_error")
    service.model.admission.record.own[HELD] = 0
    service.run(service.engine.die)
    service.wait_for(lambda: service.link.state is LinkState.DEAD)
    refused(ask(service), 529, "overloaded_error")


def test_a_stream_that_fails_says_so(service):
    service.run(setattr, service.engine, "held", True)
    box = []
    thread = threading.Thread(target=lambda: box.append(ask(service, stream=True)))
    thread.start()
    service.wait_for(lambda: len(service.engine.running) == 1)
    service.run(service.engine.step)
    service.run(service.engine.die)
    thread.join()
    *_, last = events(box[0])
    assert last["type"] == "error"
    assert last["error"]["type"] == "overloaded_error"
    assert last["request_id"] == box[0].headers["request-id"]


def test_models_in_both_forms(service):
    version = {"anthropic-version": "2023-06-01"}
    body = service.http.get("/v1/models", headers=version).json()
    assert [model["id"] for model in body["data"]] == ["toy", "alias"]
    assert (body["has_more"], body["first_id"], body["last_id"]) == (False, "toy", "alias")
    assert body["data"][0]["type"] == "model"
    assert body["data"][0]["created_at"].endswith("Z")
    first = service.http.get("/v1/models?limit=1", headers=version).json()
    assert (first["has_more"], first["last_id"]) == (True, "toy")
    rest = service.http.get("/v1/models?after_id=toy", headers=version).json()
    assert [model["id"] for model in rest["data"]] == ["alias"]
    before = service.http.get("/v1/models?before_id=alias", headers=version).json()
    assert [model["id"] for model in before["data"]] == ["toy"]
    assert service.http.get("/v1/models/alias", headers=version).json()["display_name"] == "alias"
    refused(service.http.get("/v1/models/none", headers=version), 404, "not_found_error")
    assert service.http.get("/v1/models").json()["object"] == "list"


def test_many_tools_of_long_names(service):
    """Some programs bring the tools of several servers, each name with its server's name before it."""
    tools = [
        {"name": f"mcp__{'directory-of-people'}__{'find_' * 16}{i:05}", "input_schema": {"type": "object"}}
        for i in range(200)
    ]
    assert {len(tool["name"]) for tool in tools} == {111}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    answer = service.http.post("/v1/messages", json={**body, "tools": tools, "tool_choice": {"type": "none"}})
    assert answer.status_code == 200
    long = {"name": "n" * 129, "input_schema": {"type": "object"}}
    assert service.http.post("/v1/messages", json={**body, "tools": [long]}).status_code == 400
