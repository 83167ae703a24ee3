"""Prompts, grammars and parsers of whole requests, by the format that a template shows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import tokenizers
from family_templates import HARMONY, TEMPLATES
from formats import format_of
from splitting import joined

from firelane.api.chat import ChatRequest
from firelane.errors import RequestError
from firelane.text.chat.assistant import Assistant, RenderedChat
from firelane.text.chat.chat_format import AnswerFormat
from firelane.text.chat.conversation import ChatInput, ToolUse
from firelane.text.model_files import ModelTextFiles
from firelane.text.prompt import PromptBuilder
from firelane.text.tokens.tokenizer import Tokenizer
from firelane.text.tools.tool import Tool
from tests.text.toy_model import byte_tokenizer

USER = {"role": "user", "content": "hi"}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
STRICT = {**TOOL, "function": {**TOOL["function"], "strict": True}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
MARKS = {
    "harmony": [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ],
    "deepseek_v31": ["<think>", "</think>", "<｜tool▁calls▁begin｜>"],
    "kimi_k2": ["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
    "gemma4": ["<|tool_call>", '<|"|>', "<|channel>", "<channel|>", "<|tool_response>"],
}


class Chat:
    """One model's assistant, asked without an engine."""

    def __init__(self, template: str, specials: list[str], **options: str) -> None:
        core = byte_tokenizer()
        core.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in specials])
        self.prompts = PromptBuilder(Tokenizer(core), ModelTextFiles(template=template))
        self.assistant = Assistant(self.prompts, **options)

    def ask(self, **fields: Any) -> RenderedChat:
        request = msgspec.convert({"messages": [USER], **fields}, ChatRequest)
        request.check()
        return self.assistant.chat_blocking(request)

    def id_of(self, name: str) -> int | None:
        return self.prompts.tokenizer.id_of(name)

    def read(self, chat: RenderedChat, text: str) -> tuple[str, str, list[tuple[str, str]]]:
        assert chat.splitter is not None
        splitter = chat.splitter()
        return joined([*splitter.push(text), *splitter.flush()])


@contextlib.contextmanager
def chatting(template: str, *specials: str, **options: str) -> Iterator[Chat]:
    chat = Chat(template, list(specials), **options)
    try:
        yield chat
    finally:
        chat.prompts.close()


@pytest.fixture(scope="module")
def harmony() -> Iterator[Chat]:
    with chatting(HARMONY, *MARKS["harmony"]) as chat:
        yield chat


def test_harmony_reads_every_answer(harmony):
    plain = harmony.ask()
    assert plain.text == "<|start|>user<|message|>hi<|end|><|start|>assistant"
    assert {harmony.id_of("<|channel|>"), harmony.id_of("<|end|>")} <= plain.visible_special_ids
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert harmony.read(plain, text) == ("Yes.", "Hm.", [])
    assert harmony.assistant.abilities == ["tools", "thinking"]


def test_harmony_ends_at_its_own_marks(harmony):
    assert {harmony.id_of("<|call|>"), harmony.id_of("<|return|>")} <= harmony.prompts.eos_ids
    assert harmony.id_of("<|end|>") not in harmony.prompts.eos_ids


def test_harmony_calls(harmony):
    text = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    assert harmony.read(harmony.ask(tools=[TOOL]), text) == ("", "", [("f", "{}")])
    assert harmony.read(harmony.ask(tools=[TOOL], tool_choice="none"), text) == ("{}", "", [])
    forced = harmony.ask(tools=[TOOL], tool_choice="required")
    assert harmony.read(forced, text) == ("", "", [("f", "{}")])
    assert forced.grammar.text.startswith("start: calls\ncalls: thought* call\n")
    assert f"<[{harmony.id_of('<|channel|>')}]>" in forced.grammar.text
    assert forced.text.endswith("<|start|>assistant")


def test_harmony_held_to_a_format(harmony):
    """The model thinks first, if it likes, and then writes the mark that content begins with."""
    chat = harmony.ask(response_format=FORM)
    assert chat.text.endswith("<|start|>assistant")
    assert chat.grammar.kind == "json_schema"
    assert chat.grammar.before.startswith("before: thought* ")
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert harmony.read(chat, thought + '<|channel|>final<|message|>{"a":1}') == ('{"a":1}', "Hm.", [])
    both = harmony.ask(response_format=FORM, tools=[TOOL])
    assert both.text.endswith("<|start|>assistant")
    assert "body: thought* " in both.grammar.text
    assert harmony.read(both, '<|channel|>final<|message|>{"a": 1}') == ('{"a": 1}', "", [])


def test_harmony_goes_on_with_a_message(harmony):
    messages = [USER, {"role": "assistant", "content": "It is"}]
    chat = harmony.ask(messages=messages, continue_final_message=True)
    assert chat.text.endswith("<|channel|>final<|message|>It is")
    assert chat.splitter is None


def test_an_answer_whose_template_takes_parts_goes_on():
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content[0]['text'] + '' }}</>{% endfor %}"
    messages = [USER, {"role": "assistant", "content": "Well"}]
    with chatting(template) as chat:
        asked = chat.ask(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert asked.text == "<user>hi</><assistant>Well"


def test_tools_that_are_named_as_a_variable_reach_the_template():
    with chatting("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}") as chat:
        assert chat.ask(chat_template_kwargs={"tools": ["own"]}).text == "['own']hi"
        assert chat.ask().text == "Nonehi"


def test_harmony_variables_and_history(harmony):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    past = {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [call]}
    result = {"role": "tool", "content": "12", "tool_call_id": "1"}
    text = harmony.ask(messages=[USER, past, result], tools=[TOOL], reasoning_effort="high").text
    assert "Reasoning: high" in text
    assert "<|channel|>analysis<|message|>why<|end|><|start|>assistant to=functions.f" in text
    done = {"role": "assistant", "content": "It is 12."}
    assert "why" not in harmony.ask(messages=[USER, past, result, done, USER]).text


@pytest.mark.parametrize(
    "options",
    [
        {"tool_parser": "none"},
        {"reasoning_parser": "none"},
        {"reasoning_parser": "openai_gptoss", "tool_parser": "hermes"},
    ],
)
def test_channels_are_told_apart_whatever_else_is_read(options):
    with chatting(HARMONY, *MARKS["harmony"], **options) as chat:
        text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
        assert chat.read(chat.ask(), text) == ("b", "a", [])


def test_no_parser_at_all():
    with chatting(HARMONY, tool_parser="none", reasoning_parser="none") as chat:
        assert chat.ask().splitter is None


def test_deepseek_thinks_when_it_is_told():
    with chatting(TEMPLATES["deepseek_v31"], *MARKS["deepseek_v31"]) as chat:
        for name in ("thinking", "enable_thinking"):
            asked = chat.ask(chat_template_kwargs={name: True}, tools=[TOOL])
            assert asked.text.endswith("<think>")
            text = "a</think>b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            assert chat.read(asked, text) == ("b", "a", [("f", "{}")])
        assert chat.read(chat.ask(), "b") == ("b", "", [])
        forced = chat.ask(chat_template_kwargs={"thinking": True}, tools=[TOOL], tool_choice="required")
        assert forced.text.endswith("<think>")
        assert forced.grammar.before.startswith("before: thought <[")
        calm = chat.ask(tools=[TOOL], tool_choice="required")
        assert calm.text.endswith("</think>")
        assert calm.grammar.before == ""
        assert chat.ask(reasoning_effort="none", chat_template_kwargs={"thinking": True}).text.endswith(
            "</think>"
        )


def test_a_call_ends_reasoning_that_is_left_open():
    with chatting(TEMPLATES["kimi_k2"], *MARKS["kimi_k2"]) as chat:
        call = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
        text = f"<think>a<|tool_calls_section_begin|>{call}"
        assert chat.read(chat.ask(tools=[TOOL]), text) == ("", "a", [("f", "{}")])
    with chatting(TEMPLATES["kimi_k2"]) as chat:  # also where the mark is text
        assert chat.read(chat.ask(tools=[TOOL]), text)[2] == [("f", "{}")]
        assert chat.read(chat.ask(tools=[TOOL]), f"{text} or so")[2] == []


def test_gemma_has_a_channel_for_thoughts():
    with chatting(TEMPLATES["gemma4"], *MARKS["gemma4"]) as chat:
        assert chat.id_of("<|tool_response>") in chat.prompts.eos_ids
        text = '<|channel>thought\nHm.<channel|>So: <|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
        asked = chat.ask(tools=[TOOL])
        assert chat.id_of('<|"|>') in asked.visible_special_ids
        assert chat.read(asked, text) == ("So: ", "Hm.", [("f", '{"a": "x"}')])


def test_past_reasoning_reaches_the_templates():
    with chatting(TEMPLATES["minimax_m2"]) as chat:
        past = {"role": "assistant", "content": "b", "reasoning_content": "a"}
        assert "<|assistant|><think>a</think>b" in chat.ask(messages=[USER, past, USER]).text


@pytest.mark.parametrize("name", TEMPLATES)
def test_strict_tools_have_a_grammar(name):
    form = AnswerFormat(format_of(TEMPLATES[name]), lambda _: None)
    loose, strict = Tool("f"), Tool("g", strict=True)
    assert form.grammar(ChatInput(messages=[], use=ToolUse((loose,)))).grammar is None
    made = form.grammar(ChatInput(messages=[], use=ToolUse((loose, strict))))
    assert made.grammar is not None
    assert not made.holds_all
    assert form.grammar(ChatInput(messages=[], use=ToolUse((strict,), "none"))).grammar is None


def test_strict_leaves_room_for_reasoning():
    with chatting(TEMPLATES["deepseek_v31"], *MARKS["deepseek_v31"]) as chat:
        asked = chat.ask(tools=[STRICT], chat_template_kwargs={"thinking": True})
        assert asked.text.endswith("<think>")
        assert f"<[{chat.id_of('</think>')}]>" in asked.grammar.text
        assert chat.read(asked, "a</think>b") == ("b", "a", [])


def test_schemas_that_the_format_cannot_hold_are_refused():
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "maxProperties": 2}},
    }
    with chatting(TEMPLATES["qwen3_coder"]) as chat:
        assert chat.ask(tools=[tool]).grammar is None
        with pytest.raises(RequestError, match="'maxProperties' in the schema of 'f'"):
            chat.ask(tools=[tool], tool_choice="required")


def test_calls_of_an_unknown_format_are_content():
    """Tools are told as the template has it; a call that must come cannot be promised."""
    unknown = TEMPLATES["hermes"].replace("<tool_call>", "<<").replace("</tool_call>", ">>")
    with chatting(unknown) as chat:
        asked = chat.ask(tools=[TOOL])
        assert '"name": "f"' in asked.text
        assert asked.grammar is None
        assert chat.assistant.abilities == ["thinking"]
        with pytest.raises(RequestError, match="name it with --tool-parser"):
            chat.ask(tools=[TOOL], tool_choice="required")
    refused = pytest.raises(RequestError, match="started with --tool-parser none")
    with chatting(unknown, tool_parser="none") as chat, refused:
        chat.ask(tools=[TOOL], tool_choice="required")
