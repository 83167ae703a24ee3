"""Outputs of models as published: each is read as its publisher reads it, at every cut."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import msgspec
import pytest
import tokenizers

from firelane.api.chat import ChatRequest
from firelane.text.chat.assistant import Assistant
from firelane.text.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from firelane.text.model_files import ModelTextFiles
from firelane.text.prompt import PromptBuilder
from firelane.text.tokens.tokenizer import Tokenizer
from tests.real import artefacts
from tests.real.published_outputs import Output, published_outputs
from tests.text.toy_model import byte_tokenizer

FILES = artefacts.llama_cpp("tests/test-chat.cpp")
OUTPUTS = [output for file in FILES for output in published_outputs(file)]
FRESH = [output for output in OUTPUTS if "messages" not in output.options]
"""Outputs that go on with a message are left out: the publisher counts its text as a part of the answer."""
NO_REASONING = "COMMON_REASONING_FORMAT_NONE"
MARK = re.compile(
    r"<\|[^|<>\s]+\|?>|<[a-z_]+\|>|\[/?[A-Z_]+\]|</?[a-z_:]*(?:think|tool_call)>|<｜[^｜<>]+｜>"
)
PREFILLED = "the publisher counts the mark that the prompt ends with as a part of the answer"
FENCED = "a fence around JSON is no part of the answer there; here a grammar leaves no room for one"
ASKED_OF_OTHERS = "a call of a tool that the request does not name is left out there; here nothing is lost"
STOPS = "a token that ends the answer, which the tokenizer takes out here before it is read"
NOT_APART = "channels are told apart unless both parsers are `none`"
CUT = "a call that is cut before its arguments begin is content here, as it was written"
NOT_LISTED = "docs/chat-formats.md does not list this format"
Read = tuple[str, str, list[tuple[str, str]]]
DIFFERENT = {
    ("Apriel-1.6-15b-Thinker-fixed", 0): PREFILLED,
    ("Apriel-1.6-15b-Thinker-fixed", 1): PREFILLED,
    ("Cohere2MoE", 1): PREFILLED,
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", 4): CUT,
    ("Cohere2MoE", 9): CUT,
    ("Qwen3.5-4B", 1): PREFILLED,
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 1): PREFILLED,
    ("mistralai-Ministral-3-14B-Reasoning-2512", 6): FENCED,
    ("meta-llama-Llama-3.1-8B-Instruct", 1): FENCED,
    ("inclusionai-ling-3.0-flash", 8): STOPS,
    ("inclusionai-ling-3.0-flash", 9): STOPS,
    ("openai-gpt-oss-120b", 3): NOT_APART,
    ("openai-gpt-oss-120b", 12): ASKED_OF_OTHERS,
    ("openai-gpt-oss-120b", 13): ASKED_OF_OTHERS,
}
"""Outputs that are read in another way here, and why."""
UNLISTED = frozenset(
    {
        "CohereForAI-c4ai-command-r-plus-tool_use",
        "meetkai-functionary-medium-v3.1",
        "meetkai-functionary-medium-v3.2",
        "fireworks-ai-llama-3-firefunction-v2",
    }
)
"""Templates of formats that are not read."""


@functools.cache
def assistant(template: str, reasoning: str) -> Assistant:
    """The vocabulary has the marks of the published texts as tokens."""
    marks = dict.fromkeys(
        mark for one in OUTPUTS if one.template == template for mark in MARK.findall(one.text)
    )
    core = byte_tokenizer()
    core.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in marks])
    (file,) = artefacts.llama_cpp(f"models/templates/{template}.jinja")
    prompts = PromptBuilder(Tokenizer(core), ModelTextFiles(template=file.read_text(encoding="utf-8")))
    return Assistant(prompts, reasoning_parser=reasoning)


def request(output: Output) -> ChatRequest:
    tools = [
        {"type": "function", "function": {**tool, "parameters": json.loads(tool["parameters"])}}
        for tool in output.tools
    ]
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Hey there!"}],
        "tools": tools or None,
        "chat_template_kwargs": {"enable_thinking": output.options.get("enable_thinking", True)},
    }
    return msgspec.convert(fields, ChatRequest)


def joined(deltas: list[Delta]) -> Read:
    content = "".join(delta.text for delta in deltas if isinstance(delta, Content))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, Reasoning))
    names = [delta.name for delta in deltas if isinstance(delta, CallStart)]
    arguments = [""] * len(names)
    for delta in deltas:
        if isinstance(delta, CallArguments):
            arguments[delta.index] += delta.text
    return content, reasoning, list(zip(names, arguments, strict=True))


def same(arguments: str) -> str:
    """One form of arguments that mean the same; those that are cut, without white space."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments.replace(" ", "")


@pytest.mark.parametrize("output", FRESH, ids=lambda output: output.name)
def test_an_output_is_read_as_published_at_every_cut(output: Output) -> None:
    if output.template in UNLISTED:
        pytest.skip(NOT_LISTED)
    is_none = output.options.get("reasoning_format", NO_REASONING) == NO_REASONING
    chat = assistant(output.template, "none" if is_none else "auto").chat_blocking(request(output))

    def read(pieces: list[str]) -> Read:
        if chat.splitter is None:
            return "".join(pieces), "", []
        splitter = chat.splitter()
        return joined([delta for piece in pieces for delta in splitter.push(piece)] + splitter.flush())

    text, said = output.text, output.expected
    content, reasoning, calls = whole = read([text])
    assert read(list(text)) == whole
    for place in range(1, len(text)):
        assert read([text[:place], text[place:]]) == whole
    found = content.strip(), reasoning.strip(), [(name, same(made)) for name, made in calls]
    wanted = (
        said.content.strip(),
        said.reasoning.strip(),
        [(name, same(made)) for name, made, _ in said.calls],
    )
    if (output.template, output.number) not in DIFFERENT:
        assert found == wanted
        return
    assert found != wanted
    assert taken_back(DIFFERENT[output.template, output.number], output, chat.text, found) == wanted


def taken_back(reason: str, output: Output, prompt: str, found: Read) -> Read:
    """Return what is read here, with the one change that the reason names undone."""
    content, reasoning, calls = found
    if reason == PREFILLED:
        mark = prompt.rstrip().rpartition("\n")[2]
        mark = mark[max(mark.rfind("<"), 0) :]
        gap = "\n" if prompt.endswith("\n") else ""
        is_content = output.options.get("reasoning_format", NO_REASONING) == NO_REASONING
        opened = f"{mark}{gap}"
        return (opened + content, reasoning, calls) if is_content else (content, opened + reasoning, calls)
    if reason == FENCED:
        return content.removeprefix("```json\n").removesuffix("\n```"), reasoning, calls
    if reason == STOPS:
        return content.removesuffix("<|role_end|>"), reasoning, calls
    if reason == NOT_APART:
        return f"<|channel|>analysis<|message|>{reasoning}<|end|>{content}", "", calls
    if reason == ASKED_OF_OTHERS:
        return "" if output.text.endswith(f"<|message|>{content}") else content, reasoning, calls
    assert reason == CUT
    head, name, rest = content.partition('"tool_name": "special_function",')
    assert head.startswith("<|START_ACTION|>")
    return "", reasoning, [("special_function", rest)] if name else calls


def test_the_publisher_has_as_many() -> None:
    """A changed file would leave nothing to read, and nobody would notice."""
    if not FILES:
        pytest.skip("llama-cpp-python is missing")
    assert len(FRESH) >= 380
    assert {(output.template, output.number) for output in FRESH} >= DIFFERENT.keys()
