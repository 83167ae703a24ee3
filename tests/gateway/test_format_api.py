"""Formats of calls and reasoning through /v1/chat/completions, where their marks are special tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tokenizers
from service import Service

from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.text.tools.formats.harmony import Harmony
from tests.text.family_templates import HARMONY, TEMPLATES
from tests.text.toy_model import byte_tokenizer, write_model

USER = [{"role": "user", "content": "weather?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
Make = Callable[..., Service]


@pytest.fixture
def make(loop, tmp_path) -> Iterator[Make]:
    made: list[Service] = []

    def make(template: str, *specials: str) -> Service:
        core = byte_tokenizer()
        core.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in specials])
        model = ModelConfig(model_dir=write_model(tmp_path, core, template=template), names=("toy",))
        made.append(Service(loop, core, GatewayConfig(models=(model,), port=0)))
        return made[-1]

    yield make
    for service in made:
        service.close()


def chat(service: Service, **fields) -> dict:
    answer = service.http.post("/v1/chat/completions", json={"messages": USER, "tools": [TOOL], **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def streamed(service: Service, **fields) -> tuple[str, str, str]:
    """Reasoning, content and arguments."""
    events = service.events("/v1/chat/completions", {"messages": USER, "tools": [TOOL], **fields})
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or []]
    return (
        "".join(delta.get("reasoning_content") or "" for delta in deltas),
        "".join(delta.get("content") or "" for delta in deltas),
        "".join(call["function"]["arguments"] for call in calls),
    )


def test_harmony(make):
    service = make(HARMONY, *Harmony.delimiters)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    to = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    service.text = f'{thought}{to}{{"city": "é"}}<|call|>'
    choice = chat(service)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "é"}'}
    assert streamed(service) == ("Hm.", "", '{"city": "é"}')
    service.text = f"{thought}<|channel|>final<|message|>Rain.<|return|>and more"
    assert streamed(service) == ("Hm.", "Rain.", "")
    plain = chat(service, tools=[])
    assert plain["message"]["content"] == "Rain."
    assert plain["finish_reason"] == "stop"


def test_tagged_parameters(make):
    service = make(TEMPLATES["qwen3_coder"])
    service.text = (
        "So.\n<tool_call>\n<function=weather>\n<parameter=city>\n5\n</parameter>\n<parameter=days>\n5\n"
        "</parameter>\n</function>\n</tool_call>"
    )
    choice = chat(service)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "5", "days": 5}'}
    assert choice["message"]["content"] == "So.\n"
    assert streamed(service) == ("", "So.\n", '{"city": "5", "days": 5}')
    assert chat(service, tool_choice="required")["finish_reason"] == "tool_calls"
    assert "<parameter=city>" in service.engine.submitted[-1].grammar.text


def test_kimi_ids_come_back_as_they_were(make):
    service = make(TEMPLATES["kimi_k2"])
    service.text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:4<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    message = chat(service)["message"]
    assert message["tool_calls"][0]["id"] == "functions.weather:4"
    result = {"role": "tool", "tool_call_id": "functions.weather:4", "content": "12"}
    chat(service, messages=[*USER, message, result])
    prompt = memoryview(service.engine.submitted[-1].prompt).cast("i").tolist()
    assert "<|tool_call_begin|>functions.weather:4<|tool_call_argument" in service.core.decode(prompt)
