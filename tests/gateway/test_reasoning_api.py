"""Reasoning through /v1/chat/completions."""

from __future__ import annotations

import array
import contextlib

import pytest
from service import Service

from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.text.chat.reasoning import budget_grammar
from tests.text.toy_model import byte_tokenizer, write_model

USER = [{"role": "user", "content": "hi"}]
QWEN = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
DEEPSEEK = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if reasoning_effort %}effort {{ reasoning_effort }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture
def make(make_service, core, tmp_path):
    def made(template, text, **config):
        service = make_service(model_dir=write_model(tmp_path, core, template=template), **config)
        service.text = text
        return service

    return made


def chat(service, **fields):
    answer = service.http.post("/v1/chat/completions", json={"messages": USER, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def prompt_text(service) -> str:
    ids = array.array("i", service.engine.submitted[-1].prompt).tolist()
    return service.core.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "text"), [(QWEN, "<think>\nhm\n</think>\n\nyes"), (DEEPSEEK, "hm\n</think>\n\nyes")]
)
def test_reasoning_is_split_off(make, template, text):
    service = make(template, text)
    answer = chat(service)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("yes", "hm\n")
    details = answer["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == len(text.removeprefix("<think>").removesuffix("\n\nyes"))
    events = service.events("/v1/chat/completions", {"messages": USER})
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm\n"
    assert "".join(delta.get("content", "") for delta in deltas) == "yes"


def test_not_included(make):
    answer = chat(make(DEEPSEEK, "hm</think>yes"), include_reasoning=False)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "yes", "refusal": None}
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_cut_within_reasoning(make):
    choice = chat(make(DEEPSEEK, "so long a thought"), max_tokens=7)["choices"][0]
    assert choice["message"]["reasoning_content"] == "so long"
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "length"


def test_thinking_off(make):
    service = make(QWEN, "yes")
    answer = chat(service, chat_template_kwargs={"enable_thinking": False})
    assert answer["choices"][0]["message"]["content"] == "yes"
    assert prompt_text(service).endswith("<think>\n\n</think>\n\n")
    chat(service, reasoning_effort="none")
    assert prompt_text(service).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("template", "text"), [(QWEN, "<think>hm</think>\n\nyes"), (DEEPSEEK, "hm</think>\n\nyes")]
)
def test_a_constraint_holds_behind_the_reasoning(make, template, text):
    service = make(template, text)
    message = chat(service, guided_choice=["yes", "no"])["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    assert not prompt_text(service).endswith("</think>\n\n")
    assert service.engine.submitted[-1].grammar.before.startswith("before: ")


@pytest.mark.parametrize("off", [{"reasoning_effort": "none"}, {"reasoning": {"enabled": False}}], ids=str)
def test_reasoning_that_is_off_stays_off_before_a_constraint(make, off):
    service = make(QWEN, "yes")
    message = chat(service, guided_choice=["yes", "no"], **off)["choices"][0]["message"]
    assert message["content"] == "yes"
    assert "reasoning_content" not in message
    assert prompt_text(service).endswith("<think>\n\n</think>\n\n")
    assert service.engine.submitted[-1].grammar.before == ""


@pytest.mark.parametrize("held", [{"bad_words": ["no"]}, {"allowed_token_ids": [5, 6]}], ids=str)
def test_what_holds_for_every_token_leaves_no_room_for_reasoning(make, held):
    service = make(QWEN, "yes")
    assert chat(service, **held)["choices"][0]["message"]["content"] == "yes"
    assert prompt_text(service).endswith("<think>\n\n</think>\n\n")
    assert service.engine.submitted[-1].grammar.before == ""


def test_effort_goes_to_a_template_that_knows_it(make):
    service = make(DEEPSEEK, "</think>yes")
    chat(service, reasoning_effort="high")
    assert "effort high" in prompt_text(service)


def test_effort_is_a_hint_elsewhere(make):
    service = make(QWEN, "yes")
    effort = {"input": "hi", "reasoning": {"effort": "high"}}
    for path, body in (
        ("/v1/chat/completions", {"messages": USER, "reasoning_effort": "high"}),
        ("/v1/responses", effort),
    ):
        answer = service.http.post(path, json=body)
        assert answer.status_code == 200
        assert answer.headers["x-ignored-fields"] == "reasoning_effort"


def test_reasoning_before_a_call(make):
    service = make(QWEN, '<think>f!</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    choice = chat(service, tools=[TOOL])["choices"][0]
    assert choice["message"]["reasoning_content"] == "f!"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert choice["finish_reason"] == "tool_calls"


def test_parser_by_option(make):
    service = make(QWEN, "<think>a</think>b", reasoning_parser="none")
    assert chat(service)["choices"][0]["message"]["content"] == "<think>a</think>b"


def test_parser_by_option_for_a_silent_template(make_service):
    service = make_service(reasoning_parser="think")
    service.text = "<think>a</think>b"
    assert chat(service)["choices"][0]["message"]["reasoning_content"] == "a"


def test_earlier_reasoning_reaches_the_template(make):
    service = make("{% for m in messages %}({{ m.reasoning_content }}){% endfor %}", "x")
    past = {"role": "assistant", "content": "b", "reasoning_content": "a"}
    chat(service, messages=[*USER, past, *USER])
    assert prompt_text(service) == "()(a)()"


@pytest.fixture
def marked(loop, tmp_path):
    """Makes a server of a model whose marks are tokens."""
    with contextlib.ExitStack() as made:

        def make(template):
            core = byte_tokenizer()
            core.add_tokens(["<think>", "</think>"])
            model = ModelConfig(model_dir=write_model(tmp_path, core, template=template), names=("toy",))
            config = GatewayConfig(models=(model,), port=0)
            return made.enter_context(contextlib.closing(Service(loop, core, config)))

        yield make


BUDGETS = [
    {"thinking_token_budget": 7},
    {"thinking_budget": 7},
    {"thinking": {"type": "enabled", "budget_tokens": 7}},
    {"thinking_token_budget": 7, "thinking_budget": 7},
    {"reasoning": {"max_tokens": 7}},
    {"reasoning": {"max_tokens": 9, "exclude": True}, "thinking_budget": 7},
]


@pytest.mark.parametrize("fields", BUDGETS, ids=str)
@pytest.mark.parametrize(("template", "begun"), [(DEEPSEEK, True), (QWEN, False)])
def test_a_budget_becomes_a_grammar(marked, template, begun, fields):
    service = marked(template)
    answer = service.http.post("/v1/chat/completions", json={"messages": USER, **fields})
    assert answer.status_code == 200
    assert "x-ignored-fields" not in answer.headers
    grammar = service.engine.submitted[-1].grammar
    assert grammar == budget_grammar(7, service.model.tokenizer, begun=begun)


def test_a_budget_that_cannot_be_kept_is_named(make):
    service = make(DEEPSEEK, "hm</think>yes")  # whose marks are several tokens
    names = ("thinking_token_budget", "thinking_token_budget", "thinking", "thinking_token_budget")
    for fields, name in zip(BUDGETS, (*names, "reasoning.max_tokens"), strict=False):
        answer = service.http.post("/v1/chat/completions", json={"messages": USER, **fields})
        assert answer.headers["x-ignored-fields"] == name
        assert service.engine.submitted[-1].grammar is None


def test_a_budget_of_what_does_not_reason(make):
    service = make("{{ messages[0].content }}", "yes")
    answer = service.http.post("/v1/chat/completions", json={"messages": USER, "thinking_budget": 1})
    assert "x-ignored-fields" not in answer.headers
    assert service.engine.submitted[-1].grammar is None


@pytest.mark.parametrize(
    "thinking", [True, {"type": "enabled"}, {"budget_tokens": -1}, {"budget_tokens": "7"}]
)
def test_other_words_about_thinking_are_hints(marked, thinking):
    service = marked(DEEPSEEK)
    answer = service.http.post("/v1/chat/completions", json={"messages": USER, "thinking": thinking})
    assert answer.headers["x-ignored-fields"] == "thinking"
    assert service.engine.submitted[-1].grammar is None


def test_reasoning_by_the_object_of_other_servers(make):
    service = make(DEEPSEEK, "hm</think>yes")
    chat(service, reasoning={"effort": "high"})
    assert "effort high" in prompt_text(service)
    chat(service, reasoning={"effort": "high"}, reasoning_effort="low")
    assert "effort low" in prompt_text(service)
    answer = chat(service, reasoning={"exclude": True})
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "yes", "refusal": None}
    answer = chat(service, reasoning={"exclude": True}, include_reasoning=True)
    assert answer["choices"][0]["message"]["reasoning_content"] == "hm"


def test_reasoning_that_is_not_enabled(make):
    service = make(QWEN, "yes")
    chat(service, reasoning={"enabled": False})
    assert prompt_text(service).endswith("<think>\n\n</think>\n\n")
    chat(service, reasoning={"enabled": True})
    assert prompt_text(service).endswith("<|assistant|>")


def test_further_words_about_reasoning_are_named(make):
    service = make(DEEPSEEK, "hm</think>yes")
    body = {"messages": USER, "reasoning": {"mode": "deep"}}
    answer = service.http.post("/v1/chat/completions", json=body)
    assert answer.headers["x-ignored-fields"] == "reasoning.mode"
    body["reasoning"] = {"max_tokens": -1}
    refused = service.http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "reasoning.max_tokens"


def test_a_format_leaves_nothing_to_a_budget(marked):
    service = marked(DEEPSEEK)
    form = {"type": "json_object"}
    chat(service, thinking_budget=7, response_format=form)
    assert service.engine.submitted[-1].grammar.kind == "json_schema"
