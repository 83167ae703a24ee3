"""Custom tools through chat and responses, in front of a scripted engine."""

from __future__ import annotations

import array
import json

import pytest
from test_tool_calls import TAUGHT

from tests.text.toy_model import write_model

USER = [{"role": "user", "content": "list them"}]
LARK = 'start: "ls " PATH\nPATH: /[a-z "\\\\]+/'
SAID = 'ls "a"\\é'
CHAT_TOOL = {
    "type": "custom",
    "custom": {
        "name": "sh",
        "description": "Run it",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}},
    },
}
PLAIN_TOOL = {"type": "custom", "custom": {"name": "note"}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOL = {
    "type": "custom",
    "name": "sh",
    "description": "Run it",
    "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
}

BRIEF = TAUGHT.replace(
    "{{ tools | tojson }}",
    "{% for t in tools %}{{ t.function.name }} {{ t.function.description }}{% endfor %}",
)
"""It tells less of tools: the context is short."""


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def taught(make_service, core, tmp_path):
    service = make_service(model_dir=write_model(tmp_path, core, template=BRIEF))
    service.text = call("sh", input=SAID)
    return service


def prompt_text(service) -> str:
    ids = array.array("i", service.engine.submitted[-1].prompt).tolist()
    return service.core.decode(ids, skip_special_tokens=False)


def post(service, path="/v1/chat/completions", **fields):
    body = {"messages": USER, "tools": [CHAT_TOOL, PLAIN_TOOL, FUNCTION]} if "chat" in path else {}
    return service.http.post(path, json={**body, **fields})


def chat(service, **fields):
    answer = post(service, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_a_call(taught):
    choice = chat(taught)
    assert choice["finish_reason"] == "tool_calls"
    (made,) = choice["message"]["tool_calls"]
    assert made.pop("id").startswith("call_")
    assert made == {"type": "custom", "custom": {"name": "sh", "input": SAID}}
    assert "PATH: " in prompt_text(taught)  # the model is told of the grammar
    grammar = taught.engine.submitted[-1].grammar
    assert grammar.kind == "lark"
    assert "(?:ls )" in grammar.text


def test_calls_of_both_kinds_in_a_stream(taught):
    taught.text = call("sh", input=SAID) + "\n" + call("f", city="B") + "\n" + call("note", input="x\ny")
    stream = taught.openai.chat.completions.create(
        model="toy", messages=USER, tools=[CHAT_TOOL, PLAIN_TOOL, FUNCTION], stream=True
    )
    pieces = [one for chunk in stream for one in chunk.choices[0].delta.tool_calls or []]
    starts = [one for one in pieces if one.id]
    assert [(one.index, one.type) for one in starts] == [(0, "custom"), (1, "function"), (2, "custom")]
    assert [one.custom["name"] for one in starts if one.type == "custom"] == ["sh", "note"]

    def said(index: int) -> str:
        return "".join(one.custom["input"] for one in pieces if one.index == index)

    assert (said(0), said(2)) == (SAID, "x\ny")
    assert len([one for one in pieces if one.index == 0]) > 3
    assert "".join(one.function.arguments for one in pieces if one.index == 1) == '{"city": "B"}'


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "sh"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "sh"}}]},
        },
    ],
)
def test_a_chosen_tool(taught, choice):
    assert chat(taught, tool_choice=choice)["message"]["tool_calls"][0]["custom"]["name"] == "sh"
    text = taught.engine.submitted[-1].grammar.text
    assert text.startswith("start: calls")
    assert '\\"sh\\"' in text
    assert '\\"note\\"' not in text


@pytest.mark.parametrize("text", ["ls {", '{"input": 5}', '{"other": "x"}'])
def test_an_input_of_another_form_is_given_as_it_is(taught, text):
    if text.startswith("{"):
        taught.text = f'<tool_call>\n{{"name": "note", "arguments": {text}}}\n</tool_call>'
        (made,) = chat(taught, tools=[PLAIN_TOOL])["message"]["tool_calls"]
        assert made["custom"] == {"name": "note", "input": text}
    else:
        taught.text = text
        assert chat(taught, tools=[PLAIN_TOOL])["message"]["content"] == text


def test_a_tool_loop(taught):
    first = chat(taught)["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "a b"}
    taught.text = "Two."
    choice = chat(taught, messages=[*USER, first, result])
    assert choice["message"]["content"] == "Two."
    text = prompt_text(taught)
    assert json.dumps({"input": SAID}, ensure_ascii=False) in text
    assert f"[{result['tool_call_id']}]a b" in text


def test_responses(taught):
    answer = taught.openai.responses.create(model="toy", input="list them", tools=[TOOL])
    (item,) = answer.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "sh", SAID)
    assert answer.tools[0].name == "sh"
    taught.text = "Two."
    output = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "a b"}
    further = taught.openai.responses.create(
        model="toy", previous_response_id=answer.id, input=[output], tools=[TOOL]
    )
    assert further.output_text == "Two."
    assert json.dumps({"input": SAID}, ensure_ascii=False) in prompt_text(taught)
    again = taught.openai.responses.create(
        model="toy", input=[*USER, item.model_dump(exclude_none=True), output], tools=[TOOL]
    )
    assert again.output_text == "Two."


def test_responses_in_a_stream(taught):
    events = [*taught.openai.responses.create(model="toy", input="x", tools=[TOOL], stream=True)]
    pieces = [event for event in events if event.type == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(event.delta for event in pieces) == done.input == SAID
    assert len(pieces) > 1
    (added,) = [event.item for event in events if event.type == "response.output_item.added"]
    assert (added.type, added.input, added.id) == ("custom_tool_call", "", done.item_id)
    assert events[-1].response.output[0].input == SAID


def test_responses_with_a_chosen_tool_in_a_namespace(taught):
    other = {**TOOL, "description": "The other"}
    tools = [TOOL, {"type": "namespace", "name": "n", "description": "", "tools": [other]}]
    taught.text = call("n.sh", input=SAID)
    answer = post(taught, "/v1/responses", input="x", tools=tools, tool_choice="required")
    (item,) = answer.json()["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "n", "sh")
    chosen = post(
        taught, "/v1/responses", input="x", tools=[TOOL], tool_choice={"type": "custom", "name": "sh"}
    )
    assert chosen.status_code == 200
    assert taught.engine.submitted[-1].grammar.text.startswith("start: calls")


def grammar_tool(**format):
    return {"tools": [{"type": "custom", "custom": {"name": "sh", "format": format}}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [PLAIN_TOOL, PLAIN_TOOL]}, "tools[1]"),
        ({"tools": [{"type": "custom", "custom": {"name": "a b"}}]}, "tools[0].custom.name"),
        (grammar_tool(type="json"), "tools[0].custom.format.type"),
        (grammar_tool(type="grammar"), "tools[0].custom.format.syntax"),
        (grammar_tool(type="grammar", syntax="regex"), "tools[0].custom.format.definition"),
        (grammar_tool(type="grammar", syntax="gbnf", definition="x"), "tools[0].custom.format.syntax"),
        (grammar_tool(type="grammar", syntax="lark", definition='start: "(" start ")"'), "tools"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "sh"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.custom"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
    ],
)
def test_refused(taught, fields, param):
    answer = post(taught, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
