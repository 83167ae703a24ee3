"""Items of /v1/responses in the words of the chat API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from firelane.api.stored.responses import FunctionTool, ResponsesRequest
from firelane.errors import RequestError
from firelane.gateway.apis.responses.chat import as_chat
from firelane.gateway.apis.responses.tools import left_out, names_of
from firelane.gateway.conversations.turn import ConversationStores, begin_turn
from firelane.gateway.tenants.tenant import ANONYMOUS_ADMIN

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def chat(**body: Any) -> Any:
    request = msgspec.convert(body, ResponsesRequest)
    request.check()
    turn = begin_turn(request, ConversationStores.of(0), ANONYMOUS_ADMIN)
    return as_chat(request, turn.earlier, turn.own)


def messages(**body: Any) -> list[dict[str, Any]]:
    spoken = chat(**body).messages
    made: list[dict[str, Any]] = [msgspec.to_builtins(m) | {"content": m.text("")} for m in spoken]
    return [{name: value for name, value in message.items() if value} for message in made]


def test_a_text_is_the_users():
    assert messages(input="hi", instructions="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]


def test_parts_are_joined():
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b", "annotations": []}]
    assert messages(input=[{"role": "user", "content": parts}]) == [{"role": "user", "content": "a\nb"}]


def test_what_the_assistant_did_in_one_turn_is_one_message():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "t", "text": "hm"}]}
    thought["content"][0]["type"] = "reasoning_text"
    said = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": "I call"}
    second = CALL | {"call_id": "c2", "name": "g", "arguments": "{}"}
    other = RESULT | {"call_id": "c2", "output": [{"type": "input_text", "text": "43"}]}
    made = messages(input=[{"role": "user", "content": "go"}, thought, said, CALL, second, RESULT, other])
    assert [message["role"] for message in made] == ["user", "assistant", "tool", "tool"]
    assert made[1]["content"] == "I call"
    assert made[1]["reasoning_content"] == "hm"
    assert [call["function"]["name"] for call in made[1]["tool_calls"]] == ["f", "g"]
    assert [(m["tool_call_id"], m["content"]) for m in made[2:]] == [("c1", "42"), ("c2", "43")]


def test_fields_of_the_same_meaning():
    made = chat(
        input="x",
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
    )
    assert (made.max_tokens, made.temperature, made.top_p, made.seed) == (5, 0.5, 0.9, 3)
    assert (made.logprobs, made.top_logprobs) == (True, 2)
    assert made.tools[0].function.parameters == {"type": "object"}
    assert made.tool_choice.function.name == "f"
    assert made.response_format.json_schema.schema == {"type": "object"}


def test_allowed_tools():
    named = [{"type": "function", "name": "f"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": named}
    made = chat(input="x", tools=[TOOL, TOOL | {"name": "g"}], tool_choice=choice)
    assert made.tool_choice.allowed_tools.tools[0].function.name == "f"


SPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "x",
    "tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}, {"type": "mcp"}],
}


def test_functions_of_namespaces_have_names_of_their_own():
    """The model reads the name alone where that is enough."""
    search = {"type": "web_search", "external_web_access": True}
    made = chat(input="x", tools=[search, TOOL, SPACE], client_metadata={"a": "b"}, include=INCLUDE)
    assert [tool.function.name for tool in made.tools] == ["f", "crm.f", "g"]
    called = {**CALL, "namespace": "crm", "name": "f"}
    talk = messages(input=[called, RESULT], tools=[TOOL, SPACE])
    assert talk[0]["tool_calls"][0]["function"]["name"] == "crm.f"


def test_what_becomes_of_tools():
    tools = msgspec.convert([{"type": "mcp", "server_url": "x"}, SPACE], list[FunctionTool])
    assert left_out(tools) == ["tools[0]", "tools[1].tools[2]"]
    assert names_of(tools).own_name("f") == ("crm", "f")
    assert names_of(tools).own_name("other") == (None, "other")


INCLUDE = ["reasoning.encrypted_content"]
REFUSED = {
    "no input": {},
    "empty list": {"input": []},
    "image": {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
    "role": {"input": [{"role": "robot", "content": "x"}]},
    "no content": {"input": [{"role": "user"}]},
    "unknown item with a role": {"input": [{"type": "mesage", "role": "user", "content": "x"}]},
    "reference without id": {"input": [{"type": "item_reference"}]},
    "unknown reference": {"input": [{"type": "item_reference", "id": "msg_1"}]},
    "output without call": {"input": [RESULT]},
    "output before call": {"input": [RESULT, CALL]},
    "arguments": {"input": [{**CALL, "arguments": None}]},
    "background without store": {"input": "x", "background": True, "store": False},
    "conversation without id": {"input": "x", "conversation": {"name": "x"}},
    "two pasts": {"input": "x", "conversation": "conv_1", "previous_response_id": "resp_1"},
    "prompt": {"input": "x", "prompt": {"id": "pmpt_1"}},
    "truncation": {"input": "x", "truncation": "middle"},
    "include": {"input": "x", "include": ["everything"]},
    "space in space": {"input": "x", "tools": [{"type": "namespace", "name": "a", "tools": [SPACE]}]},
    "top_logprobs": {"input": "x", "top_logprobs": 1},
    "stream_options": {"input": "x", "stream_options": {"include_obfuscation": False}},
    "choice of a hosted tool": {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": "required"},
    "tool without name": {"input": "x", "tools": [{"type": "function"}]},
    "choice without tools": {"input": "x", "tool_choice": "required"},
    "choice of another": {"input": "x", "tools": [TOOL], "tool_choice": {"type": "file_search"}},
    "choice of words": {"input": "x", "tools": [TOOL], "tool_choice": "maybe"},
    "allowed tools": {"input": "x", "tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": 3}},
    "schema": {"input": "x", "text": {"format": {"type": "json_schema", "name": "n"}}},
    "schema name": {"input": "x", "text": {"format": {"type": "json_schema", "schema": {}}}},
    "summary": {"input": "x", "reasoning": {"summary": "long"}},
    "store": {"input": "x", "store": True},
    "metadata": {"input": "x", "metadata": {str(i): "x" for i in range(17)}},
    "metadata value": {"input": "x", "metadata": {"a": "x" * 513}},
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_refused(body):
    with pytest.raises((RequestError, msgspec.ValidationError)) as caught:
        chat(**body)
    assert "\n" not in str(caught.value)
