"""Tools through /v1/chat/completions, in front of a scripted engine."""

from __future__ import annotations

import array
import json

import pytest
import tokenizers
from service import Service

from firelane.gateway.config import GatewayConfig, ModelConfig
from tests.text.toy_model import byte_tokenizer, write_model

USER = [{"role": "user", "content": "weather?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell it",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TAUGHT = (
    "{%- if tools %}<|system|>{{ tools | tojson }}\n{% endif %}"
    "{%- for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>"
    "{%- if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endif %}{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}"
    "<tool_call>{% if c.function.arguments.city %}{{ c.function.name }}:{{ c.function.arguments.city }}"
    "{% else %}{{ c.function | tojson }}</tool_call>{% endif %}"  # others as the model writes them
    "{% endfor %}\n"
    "{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def taught(make_service, core, tmp_path):
    service = make_service(model_dir=write_model(tmp_path, core, template=TAUGHT))
    service.text = CALL
    return service


def chat(service, messages=USER, **fields):
    answer = service.http.post("/v1/chat/completions", json={"messages": messages, "tools": [TOOL], **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def prompt_text(service) -> str:
    ids = array.array("i", service.engine.submitted[-1].prompt).tolist()
    return service.core.decode(ids, skip_special_tokens=False)


def test_a_call(taught):
    choice = chat(taught)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Zürich"}'}
    assert '"name": "weather"' in prompt_text(taught)
    assert taught.engine.submitted[-1].grammar is None


def test_a_streamed_call(taught):
    taught.text = "Let me see." + CALL
    stream = taught.openai.chat.completions.create(model="toy", messages=USER, tools=[TOOL], stream=True)
    deltas = [chunk.choices[0] for chunk in stream]
    calls = [call for delta in deltas for call in delta.delta.tool_calls or []]
    assert calls[0].function.name == "weather"
    assert calls[0].id
    assert all(call.id is None and call.function.name is None for call in calls[1:])
    assert len(calls) > 5  # arguments come piece by piece
    assert "".join(call.function.arguments for call in calls) == '{"city": "Zürich"}'
    assert "".join(delta.delta.content or "" for delta in deltas) == "Let me see."
    assert deltas[-1].finish_reason == "tool_calls"


def test_stream_helper_accumulates(taught):
    with taught.openai.chat.completions.stream(model="toy", messages=USER, tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"city": "Zürich"}'


def test_a_tool_loop(taught):
    first = chat(taught)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "12 °C"}
    taught.text = "It is 12 °C."
    choice = chat(taught, [*USER, first, result])["choices"][0]
    assert choice["message"]["content"] == "It is 12 °C."
    assert choice["finish_reason"] == "stop"
    text = prompt_text(taught)
    assert "<tool_call>weather:Zürich" in text
    assert f"[{result['tool_call_id']}]12 °C" in text


def test_a_template_that_knows_no_tools(service):
    """The tools are told in the system message, calls and results in plain messages."""
    service.text = CALL
    first = chat(service)["choices"][0]["message"]
    assert first["tool_calls"][0]["function"]["name"] == "weather"
    assert prompt_text(service).startswith("<|bos|><|system|>You may call these functions")
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "12"}
    chat(service, [{"role": "system", "content": "Be brief."}, *USER, first, result])
    text = prompt_text(service)
    assert text.startswith("<|bos|><|system|>Be brief.\n\nYou may call")
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>' in text
    assert "<tool_response>\n12\n</tool_response>" in text


def test_none_is_plain_text(taught):
    choice = chat(taught, tool_choice="none")["choices"][0]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"
    assert "weather" not in prompt_text(taught).replace("weather?", "")


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "weather"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "weather"}}],
            },
        },
    ],
)
def test_a_forced_call_has_a_grammar(taught, choice):
    other = {"type": "function", "function": {"name": "other"}}
    answer = chat(taught, tools=[TOOL, other], tool_choice=choice)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    grammar = taught.engine.submitted[-1].grammar
    assert grammar.kind == "lark"
    assert "weather" in grammar.text
    assert ("other" in grammar.text) is (choice == "required")


def test_without_parallel_calls_the_first_ends_the_answer(taught):
    taught.text = CALL + CALL
    assert len(chat(taught)["choices"][0]["message"]["tool_calls"]) == 2
    answer = chat(taught, parallel_tool_calls=False)["choices"][0]
    assert len(answer["message"]["tool_calls"]) == 1
    assert answer["finish_reason"] == "tool_calls"
    taught.wait_for(lambda: bool(taught.engine.aborted))


def test_a_malformed_call_is_content(taught):
    taught.text = '<tool_call>\n{"name": weather}\n</tool_call>'
    choice = chat(taught)["choices"][0]
    assert choice["message"]["content"] == taught.text
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


def test_a_call_that_is_cut_short(taught):
    choice = chat(taught, max_tokens=60)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert (
        CALL.encode()[:60]
        .decode(errors="ignore")
        .endswith(choice["message"]["tool_calls"][0]["function"]["arguments"])
    )


def test_each_choice_has_its_calls(taught):
    answer = chat(taught, n=2)
    assert [len(choice["message"]["tool_calls"]) for choice in answer["choices"]] == [1, 1]
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in answer["choices"]}
    assert len(ids) == 2


def test_logprobs_and_calls(taught):
    choice = chat(taught, logprobs=True)["choices"][0]
    assert len(choice["logprobs"]["content"]) == len(CALL.encode())
    assert choice["message"]["tool_calls"]


def special_core() -> tokenizers.Tokenizer:
    core = byte_tokenizer()
    core.add_special_tokens([tokenizers.AddedToken(n, special=True) for n in ("[TOOL_CALLS]", "[ARGS]")])
    return core


@pytest.fixture
def special_service(loop, tmp_path):
    core = special_core()
    template = TAUGHT.replace("<tool_call>", "[TOOL_CALLS]").replace(
        "{{ c.function.name }}:", "{{ c.function.name }}[ARGS]"
    )
    model_dir = write_model(tmp_path, core, template=template)
    service = Service(
        loop, core, GatewayConfig(models=(ModelConfig(model_dir=model_dir, names=("toy",)),), port=0)
    )
    yield service
    service.close()


def test_marks_that_are_special_tokens(special_service):
    service = special_service
    service.text = '[TOOL_CALLS]weather[ARGS]{"city": "Bern"}'
    (call,) = chat(service)["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Bern"}'}
    assert len(call["id"]) == 9
    chat(service, tool_choice="required")
    assert f"<[{service.core.token_to_id('[TOOL_CALLS]')}]>" in service.engine.submitted[-1].grammar.text
    plain = service.http.post("/v1/chat/completions", json={"messages": USER}).json()
    assert plain["choices"][0]["message"]["content"] == 'weather{"city": "Bern"}'


def test_parser_none(make_service):
    service = make_service(tool_parser="none")
    service.text = CALL
    assert chat(service)["choices"][0]["message"]["content"] == CALL
    answer = service.http.post(
        "/v1/chat/completions", json={"messages": USER, "tools": [TOOL], "tool_choice": "required"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported_parameter"
    chat(service, guided_regex="<.*")
    assert service.engine.submitted[-1].grammar.kind == "regex"


def assistant(arguments):
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [TOOL, TOOL]}, "tools[1]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": 5}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function"}] * 1025}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": 1}}, "function_call.name"),
        (
            {"messages": [{"role": "user", "content": "x", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
        ),
        ({"messages": [*USER, {**assistant("{}"), "role": "user"}]}, "messages[1].tool_calls"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"structured_outputs": {"regex": "a"}}, "tools"),
    ],
)
def test_refused(taught, fields, param):
    answer = taught.http.post("/v1/chat/completions", json={"messages": USER, "tools": [TOOL], **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_deep_and_large_schemas_are_refused(taught):
    schema: dict = {"type": "object"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}}
    large = {"type": "object", "description": "x" * 70_000}
    for parameters, words in ((schema, "32 levels"), (large, "65536")):
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        answer = taught.http.post("/v1/chat/completions", json={"messages": USER, "tools": [tool]})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]


def test_functions_are_tools_of_old(taught):
    fields = {"functions": [TOOL["function"]]}
    talk = [*USER]
    ask = {"messages": talk, **fields}
    choice = taught.http.post("/v1/chat/completions", json=ask).json()["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "function_call"
    assert message["function_call"] == {"name": "weather", "arguments": '{"city": "Zürich"}'}
    assert "tool_calls" not in message
    events = taught.events("/v1/chat/completions", ask)
    deltas = [event["choices"][0]["delta"].get("function_call") for event in events]
    assert "".join(d["arguments"] for d in deltas if d) == '{"city": "Zürich"}'
    assert events[-1]["choices"][0]["finish_reason"] == "function_call"
    talk += [message, {"role": "function", "name": "weather", "content": "12 °C"}]
    taught.http.post("/v1/chat/completions", json=ask)
    assert "<tool_call>weather:Zürich\n<|user|>[call_1]12 °C" in prompt_text(taught).replace(
        "Zürich<|user|>", "Zürich\n<|user|>"
    )
    taught.http.post("/v1/chat/completions", json={**ask, "function_call": {"name": "weather"}})
    assert taught.engine.submitted[-1].grammar is not None
    plain = taught.http.post("/v1/chat/completions", json={**ask, "function_call": "none"}).json()
    assert plain["choices"][0]["message"]["content"] == CALL


def test_tools_beside_a_format(taught):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    chat(taught, response_format=form)
    grammar = taught.engine.submitted[-1].grammar
    assert grammar.text.startswith("start: calls | body\nbody: %json ")
    assert (
        json.loads(grammar.text.split("\n")[1].removeprefix("body: %json "))["properties"]
        == schema["properties"]
    )
