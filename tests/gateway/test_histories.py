"""Every API takes back what any API gives out, and items that other servers made end no conversation."""

from __future__ import annotations

from typing import Any

import pytest
from taught_model import prompt

from tests.text.family_templates import HARMONY, TEMPLATES
from tests.text.toy_model import write_model

STEP = 17
"""Tokens, which are bytes here, from one cut to the next; prime, so that the cuts fall anywhere."""
TOOL: Any = {"name": "look", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}}}
THINK = "<think>Hm, so\n</think>\n\nWell. "
ANSWERS = {
    "hermes": THINK + '<tool_call>\n{"name": "look", "arguments": {"s": "Z\\u00fc \\" \\n", "n": [1, {}]}}\n'
    '</tool_call>\n<tool_call>\n{"name": "look", "arguments": {"s": ""}}\n</tool_call>',
    "qwen3_coder": THINK + "<tool_call>\n<function=look>\n<parameter=s>\nZü 🔥\n</parameter>\n<parameter=n>\n"
    "[1, 2]\n</parameter>\n</function>\n</tool_call>",
    "mistral": 'Well. [TOOL_CALLS]look[ARGS]{"s": "Zü", "n": {"a": null}}[TOOL_CALLS]look[ARGS]{"s": "b"}',
    "deepseek_v31": "Hm, so</think>Well. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"
    '{"s": "Zü", "n": true}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "harmony": "<|channel|>analysis<|message|>Hm, so<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.look <|constrain|>json<|message|>{"s": "Zü 🔥", "n": [1, 2]}<|call|>',
}
TOLD = {"type": "function", "function": TOOL}
ASKED = {"role": "user", "content": "QUESTION"}
NEXT = {"role": "user", "content": "NEXT"}


def post(service: Any, path: str, **body: Any) -> Any:
    answer = service.http.post(path, json={"model": "toy", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(service: Any, tokens: int) -> None:
    path, told = "/v1/chat/completions", {"tools": [TOLD]}
    said = post(service, path, messages=[ASKED], max_tokens=tokens, **told)["choices"][0]["message"]
    calls = said.get("tool_calls", [])
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "RESULT"} for call in calls]
    post(service, path, messages=[ASKED, said, *results, NEXT], **told)


def responses(service: Any, tokens: int) -> None:
    path, told = "/v1/responses", {"tools": [{"type": "function", **TOOL}]}
    made = post(service, path, input=[ASKED], max_output_tokens=tokens, **told)
    calls = [item for item in made["output"] if item["type"] == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "RESULT"} for call in calls
    ]
    referred = [{"type": "item_reference", "id": item["id"]} for item in made["output"]]
    for items in (made["output"], referred):
        post(service, path, input=[ASKED, *items, *results, NEXT], **told)
    post(service, path, input=[*results, NEXT], previous_response_id=made["id"], **told)


def messages(service: Any, tokens: int) -> None:
    path, tool = "/v1/messages", {"name": "look", "input_schema": TOOL["parameters"]}
    said = post(service, path, messages=[ASKED], max_tokens=tokens, tools=[tool])["content"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "RESULT"}
        for block in said
        if block["type"] == "tool_use"
    ]
    next_turn = {"role": "user", "content": [*results, {"type": "text", "text": "NEXT"}]}
    talk = [ASKED, {"role": "assistant", "content": said}, next_turn]
    post(service, path, messages=talk, max_tokens=99, tools=[tool])


def ollama(service: Any, tokens: int) -> None:
    path, told = "/api/chat", {"tools": [TOLD], "stream": False}
    said = post(service, path, messages=[ASKED], options={"num_predict": tokens}, **told)["message"]
    results = [
        {"role": "tool", "tool_name": "look", "content": "RESULT"} for _ in said.get("tool_calls") or ()
    ]
    post(service, path, messages=[ASKED, said, *results, NEXT], **told)


@pytest.mark.parametrize("api", [chat, responses, messages, ollama])
@pytest.mark.parametrize("form", ANSWERS)
def test_an_answer_cut_anywhere_is_taken_back(make_service, core, tmp_path, form, api):
    template = HARMONY if form == "harmony" else TEMPLATES[form]
    service = make_service(model_dir=write_model(tmp_path, core, template=template))
    service.text = ANSWERS[form]
    for tokens in range(1, len(ANSWERS[form].encode()) + STEP, STEP):
        api(service, tokens)
        shown = prompt(service)
        assert "QUESTION" in shown
        assert "NEXT" in shown


TEXTS = (
    "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }} "
    "{{ c.function.arguments if ARGS else c.function.arguments | tojson }}){% endfor %}"
)
TEMPLATE = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}<|{{ m.role }}|>" + TEXTS + "\n{% endfor %}"
)
CUT = '{"s": "Zü", "n": [1'


@pytest.mark.parametrize(
    ("test", "shown"), [("c.function.arguments is string", CUT), ("false", '{"s": "Zü", "n": [1]}')]
)
@pytest.mark.parametrize("arguments", [CUT, "no JSON", [1]])
def test_arguments_are_shown_as_the_template_takes_them(make_service, core, tmp_path, test, shown, arguments):
    template = TEMPLATE.replace("ARGS", test)
    service = make_service(model_dir=write_model(tmp_path, core, template=template))
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}
    said = {"role": "assistant", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "a", "content": "RESULT"}
    post(service, "/v1/chat/completions", messages=[ASKED, said, result])
    if arguments is CUT:
        assert f"(look {shown})" in prompt(service)
    else:
        text = arguments if isinstance(arguments, str) else "[1]"
        whole = text if "string" in test else '{"arguments": "' + text + '"}'
        assert f"(look {whole})" in prompt(service)


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
LEFT_OUT = "[image left out: this model reads text only]"


def test_parts_stand_on_lines_of_their_own_and_what_is_not_read_leaves_words(service):
    parts = [{"type": "text", "text": "one"}, PICTURE, {"type": "text", "text": "two"}]
    said = [{"type": "text", "text": "I can"}, {"type": "refusal", "refusal": "not."}]
    talk = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": None, "reasoning_content": "thought"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "user", "content": "d"},
        {"role": "assistant", "audio": {"id": "audio_1"}},
        {"role": "tool", "tool_call_id": "x", "content": [PICTURE]},
    ]
    answer = service.http.post("/v1/chat/completions", json={"messages": talk})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == "messages[].content"
    assert prompt(service) == (
        f"<|bos|><|user|>one\n{LEFT_OUT}\ntwo\n<|assistant|>I cannot.\n<|user|>b\n<|assistant|>\n<|user|>c\n"
        "<|assistant|>No.\n<|user|>d\n<|assistant|>[audio left out: this model reads text only]\n"
        f"<|user|><tool_response>\n{LEFT_OUT}\n</tool_response>\n<|assistant|>"
    )


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ({"type": "web_search_call", "status": "searching", "action": {"query": "x"}}, "[web search call "),
        ({"type": "image_generation_call", "result": "aGk=", "status": "generating"}, "[image generation "),
        ({"type": "compaction", "encrypted_content": "gAAA"}, "[earlier messages left out"),
        ({"type": "code_interpreter_call", "code": "1", "outputs": [{"type": "logs"}]}, "[code interpreter "),
    ],
)
def test_items_of_other_servers_leave_words(service, item, shown):
    talk = [ASKED, {"id": "x_1", **item}, {"role": "assistant", "content": "after"}, NEXT]
    answer = service.http.post("/v1/responses", json={"input": talk})
    assert answer.status_code == 200, answer.text
    assert f"input[].{item['type']}" in answer.headers["x-ignored-fields"]
    for mark in (shown, "QUESTION", "after", "NEXT"):
        assert mark in prompt(service)


@pytest.mark.parametrize(
    ("call", "output", "shown"),
    [
        ({"type": "custom_tool_call", "name": "sh", "input": "ls"}, "RESULT", '(sh {"input": "ls"})'),
        (
            {
                "type": "local_shell_call",
                "action": {"type": "exec", "command": ["ls"]},
                "status": "completed",
            },
            "RESULT",
            '(local_shell {"type": "exec", "command": ["ls"]})',
        ),
        ({"type": "shell_call", "action": {"a": 1}}, [{"stdout": "RESULT"}], '(shell {"a": 1})'),
        ({"type": "apply_patch_call", "operation": {"a": 1}}, None, '(apply_patch {"a": 1})'),
        (
            {"type": "computer_call", "action": {"a": 1}},
            {"type": "computer_screenshot"},
            '(computer {"a": 1})',
        ),
    ],
)
def test_calls_of_other_tools_are_calls(make_service, core, tmp_path, call, output, shown):
    template = TEMPLATE.replace("ARGS", "false")
    service = make_service(model_dir=write_model(tmp_path, core, template=template))
    result = {"type": call["type"] + "_output", "call_id": "c_1", "output": output}
    post(service, "/v1/responses", input=[ASKED, {"call_id": "c_1", **call}, result])
    assert shown in prompt(service)
    kept = "RESULT" if "RESULT" in str(output) else LEFT_OUT if output else ""
    assert kept in prompt(service).split("<|tool|>")[1]


def test_encrypted_reasoning_is_named_and_left_out(service):
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    answer = service.http.post("/v1/responses", json={"input": [ASKED, thought, NEXT]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-fields"] == "input[].encrypted_content"


def test_references_are_of_one_key_and_not_doubled(service):
    service.http.headers["authorization"] = "Bearer one"
    made = post(service, "/v1/responses", input="QUESTION")
    reference = {"type": "item_reference", "id": made["output"][0]["id"]}
    post(service, "/v1/responses", input=[reference, NEXT], previous_response_id=made["id"])
    assert prompt(service).count("hello world") == 1
    (asked,) = service.http.get(f"/v1/responses/{made['id']}/input_items").json()["data"]
    post(service, "/v1/responses", input=[{"type": "item_reference", "id": asked["id"]}, reference, NEXT])
    assert prompt(service).startswith("<|bos|><|user|>QUESTION\n<|assistant|>hello world\n<|user|>NEXT")
    service.http.headers["authorization"] = "Bearer two"
    answer = service.http.post("/v1/responses", json={"input": [reference, NEXT]})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "item_not_found"


def test_blocks_of_anthropics_servers(service):
    source = {"type": "text", "media_type": "text/plain", "data": "PLAIN"}
    found = {
        "type": "search_result",
        "title": "T",
        "source": "s",
        "content": [{"type": "text", "text": "FOUND"}],
    }
    asked = [
        {"type": "document", "source": source, "title": "D"},
        found,
        {"type": "text", "text": "QUESTION"},
    ]
    searched = [
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": {"type": "error"}},
        {"type": "compaction", "content": "SUMMARY"},
        {"type": "tool_use", "id": "t_1", "name": "look", "input": "no JSON"},
    ]
    image = {"type": "image", "source": {"type": "base64", "data": "aGk="}}
    result = {"type": "tool_result", "tool_use_id": "t_1", "content": [image]}
    talk = [("user", asked), ("assistant", searched), ("user", [result])]
    turns = [{"role": role, "content": content} for role, content in talk]
    answer = service.http.post("/v1/messages", json={"max_tokens": 9, "messages": turns})
    assert answer.status_code == 200, answer.text
    assert "messages[].content" in answer.headers["x-ignored-fields"]
    for mark in ("D\nPLAIN", "T\nFOUND", "QUESTION", "[web search tool result left out]SUMMARY", LEFT_OUT):
        assert mark in prompt(service)
