"""Reasoning and calls through /v1/responses, with templates that have them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.text.toy_model import write_model

TEMPLATE = (
    "{%- if tools %}<|system|>{{ tools | tojson }}\n{% endif %}"
    "{%- for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}"
    '<tool_call>{{ {"name": c.function.name, "arguments": c.function.arguments} | tojson }}</tool_call>'
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOL: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALLS = (
    '<think>hm</think>Well.<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "f", "arguments": {"x": 2}}\n</tool_call>'
)


@pytest.fixture
def thinker(make_service, core, tmp_path):
    service = make_service(model_dir=write_model(tmp_path, core, template=TEMPLATE))
    service.text = CALLS
    return service


def prompt(service: Any) -> str:
    ids = memoryview(service.engine.submitted[-1].prompt).cast("i").tolist()
    return service.core.decode(ids, skip_special_tokens=False)


def shape(output: list[Any]) -> list[Any]:
    made: list[Any] = []
    for item in output:
        parts = getattr(item, "content", None)
        made.append((item.type, parts[0].text if parts else json.loads(item.arguments)))
    return made


SHAPE = [
    ("reasoning", "hm"),
    ("message", "Well."),
    ("function_call", {"x": 1}),
    ("function_call", {"x": 2}),
]


def test_whole_and_streamed_are_the_same(thinker):
    whole = thinker.openai.responses.create(model="toy", input="x", tools=[TOOL])
    assert shape(whole.output) == SHAPE
    assert whole.status == "completed"
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    with thinker.openai.responses.stream(model="toy", input="x", tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert shape(final.output) == SHAPE
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    assert "response.reasoning_text.delta" in kinds


def test_what_comes_back_is_what_the_model_wrote(thinker):
    first = thinker.openai.responses.create(model="toy", input="x", tools=[TOOL])
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": str(i)}
        for i, item in enumerate(first.output[2:])
    ]
    thinker.text = "Done."
    thinker.openai.responses.create(input=results, previous_response_id=first.id)
    by_id = prompt(thinker)
    asked: Any = [{"role": "user", "content": "x"}, *first.output, *results]
    thinker.openai.responses.create(model="toy", input=asked)
    assert prompt(thinker) == by_id
    assert by_id.count("<think>hm</think>Well.<tool_call>") == 1
    assert by_id.endswith("<|user|>0<|user|>1<|assistant|>")


def test_logprobs_are_those_of_the_message(thinker):
    thinker.text = "<think>hm</think>Well."
    given: Any = {
        "model": "toy",
        "input": "x",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
    }
    with thinker.openai.responses.stream(**given) as stream:
        final = stream.until_done().get_final_response()
    (entries,) = [item.content[0].logprobs for item in final.output if item.type == "message"]
    assert "Well." in "".join(entry.token for entry in entries)
    assert "hm" not in "".join(entry.token for entry in entries)


def test_workers_ai_has_calls_and_reasoning(thinker):
    tool = {"name": "f", "parameters": {"type": "object"}}
    answer = thinker.http.post(
        "/client/v4/accounts/a/ai/run/toy",
        json={"messages": [{"role": "user", "content": "x"}], "tools": [tool]},
    )
    result = answer.json()["result"]
    assert (result["response"], result["reasoning_content"]) == ("Well.", "hm")
    assert [call["arguments"] for call in result["tool_calls"]] == [{"x": 1}, {"x": 2}]
    back = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": result["response"], "tool_calls": result["tool_calls"]},
        {"role": "tool", "name": "f", "content": "1"},
    ]
    body = {"messages": back, "tools": [tool], "stream": True}
    streamed = thinker.http.post("/client/v4/accounts/a/ai/run/toy", json=body)
    events = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    assert "".join(event["response"] for event in events) == "Well."
    assert [call["name"] for call in events[-1]["tool_calls"]] == ["f", "f"]
    assert '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>' in prompt(thinker)
