from __future__ import annotations

import array

import openai
import pytest

from tests.text.toy_model import write_model

USER = [{"role": "user", "content": "hi"}]


def chat(service, messages=USER, **fields):
    return service.http.post("/v1/chat/completions", json={"messages": messages, **fields})


def prompt_text(service) -> str:
    ids = array.array("i", service.engine.submitted[-1].prompt).tolist()
    return service.core.decode(ids, skip_special_tokens=False)


def test_answer(service):
    answer = service.openai.chat.completions.create(model="toy", messages=USER)
    assert answer.choices[0].message.content == "hello world"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert prompt_text(service) == "<|bos|><|user|>hi\n<|assistant|>"


def test_template_gets_roles_and_parts(service):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "x", "refusal": None, "tool_calls": []},
        {"role": "user", "content": "y"},
    ]
    assert chat(service, messages).status_code == 200
    assert (
        prompt_text(service)
        == "<|bos|><|system|>be brief\n<|user|>a\nb\n<|assistant|>x\n<|user|>y\n<|assistant|>"
    )
    assert chat(service, add_generation_prompt=False).status_code == 200
    assert prompt_text(service) == "<|bos|><|user|>hi\n"


def test_max_tokens_default_is_the_rest_of_the_context(service):
    service.text = "x" * 600
    answer = chat(service).json()
    assert answer["usage"]["total_tokens"] == 512
    assert chat(service, max_tokens=5, max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


def test_stream(service):
    service.text = "né 🔥"
    chunks = list(
        service.openai.chat.completions.create(
            model="toy", messages=USER, stream=True, n=2, stream_options={"include_usage": True}
        )
    )
    for index in (0, 1):
        deltas = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert deltas[0].delta.role == "assistant"
        assert "".join(d.delta.content or "" for d in deltas) == "né 🔥"
        assert deltas[-1].finish_reason == "stop"
    assert chunks[-1].usage.prompt_tokens == 6
    assert chunks[0].object == "chat.completion.chunk"


def test_logprobs(service):
    service.text = "é"
    content = chat(service, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2]
    assert content[0]["logprob"] == -0.5
    content = chat(service, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert content[0]["top_logprobs"] == []
    assert chat(service).json()["choices"][0]["logprobs"] is None


def test_streamed_logprobs_equal_whole_ones(service):
    service.text = "aé🔥"
    whole = chat(service, logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
    events = service.events("/v1/chat/completions", {"messages": USER, "logprobs": True, "top_logprobs": 1})
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert [entry for part in parts if part for entry in part["content"]] == whole


def test_stop(service):
    answer = service.openai.chat.completions.create(model="toy", messages=USER, stop=["wor"])
    assert answer.choices[0].message.content == "hello "


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"type": "custom"}]}]},
            "messages[0].tool_calls[0].type",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 600}, "messages"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_refused(service, fields, param):
    answer = chat(service, **{"messages": USER, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_neutral_values_pass(service):
    answer = chat(
        service, tools=[], tool_choice="none", response_format={"type": "text"}, user="u", store=False,
        metadata={},
        service_tier="auto", parallel_tool_calls=True, logprobs=False, top_logprobs=0, temperature=1, n=1,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


def test_openai_error_class(service):
    with pytest.raises(openai.BadRequestError) as error:
        service.openai.chat.completions.create(model="toy", messages=USER, max_tokens=10_000)
    assert error.value.code == "context_length_exceeded"
    assert "in the messages, 10000 in the completion" in str(error.value)


def test_model_without_template(make_service, core, tmp_path):
    service = make_service(model_dir=write_model(tmp_path, core, template=None))
    answer = chat(service)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "no_chat_template"


def test_template_that_refuses(make_service, core, tmp_path):
    source = "{{ raise_exception('roles must alternate') }}"
    service = make_service(model_dir=write_model(tmp_path, core, template=source))
    answer = chat(service)
    assert answer.status_code == 400
    assert "roles must alternate" in answer.json()["error"]["message"]


def test_template_kwargs(make_service, core, tmp_path):
    source = "{% if thinking %}T{% else %}F{% endif %}"
    service = make_service(model_dir=write_model(tmp_path, core, template=source))
    chat(service, chat_template_kwargs={"thinking": True})
    assert prompt_text(service) == "T"
