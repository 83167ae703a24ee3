"""Published chat templates: no text of any conversation is lost, by whatever API it comes; and what is
rendered is what transformers renders, but for the reasons that are listed here.
"""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from firelane.text.chat.chat_format import ChatFormat
from firelane.text.chat.conversation import chat_conversation
from firelane.text.history import AS_SENT
from firelane.text.rendering.template import ChatTemplate
from tests.real import artefacts
from tests.real.template_talks import APIS, SHAPES, TALKS, TOOLS
from tests.text.formats import format_of

CONSTANTS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
MARK = re.compile(r"mark[a-z]+")
UNFIT = {"fireworks-ai-llama-3-firefunction-v2": "it adds a variable `datetime` that nobody gives to a text"}
TOKENIZERS = ("qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss")


def sources() -> dict[str, str]:
    """Templates by name."""
    found = {path.stem: path.read_text() for path in artefacts.llama_cpp("models/templates/*.jinja")}
    for name in TOKENIZERS:
        folder = artefacts.tokenizer(name)
        if folder is not None:
            found[f"tokenizer-{name}"] = _of_tokenizer(folder)
    return {name: source for name, source in found.items() if source and name not in UNFIT}


def _of_tokenizer(folder: Path) -> str:
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text()
    given: Any = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template", "")
    return given if isinstance(given, str) else given[0]["template"]


SOURCES = sources()


@cache
def known(name: str) -> tuple[ChatFormat, ChatTemplate]:
    return format_of(SOURCES[name]), ChatTemplate(SOURCES[name], CONSTANTS)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SOURCES)
def test_every_text_is_in_the_prompt(name: str, shape: str, api: str) -> None:
    form, template = known(name)
    turns = SHAPES[shape]
    conversation = chat_conversation(APIS[api](turns), None)
    told, variables = form.history(conversation.messages, TOOLS)
    text = template.render(told, {"add_generation_prompt": True, **variables})
    assert set(MARK.findall(str(turns))) <= set(MARK.findall(text))


def _by_transformers(name: str, talk: str) -> str | None:
    """None where the template refuses the conversation."""
    messages, tools = TALKS[talk]
    try:
        made = render_jinja_template(
            conversations=[copy.deepcopy(messages)],
            tools=TOOLS if tools else None,
            chat_template=SOURCES[name],
            add_generation_prompt=True,
            **CONSTANTS,
        )
    except (jinja2.TemplateError, TypeError, ValueError, AttributeError):
        return None
    return made[0][0]


def _reason(name: str, talk: str, theirs: str | None) -> str:
    """Why a conversation is not rendered as by transformers, "" where there is no reason."""
    messages, tools = TALKS[talk]
    form, _ = known(name)
    facts = form.telling.facts
    told, variables = form.history(copy.deepcopy(messages), TOOLS if tools else [])
    if theirs is None:
        return "the template refuses the conversation as it is"
    if not set(MARK.findall(str(messages))) <= set(MARK.findall(theirs)):
        return "the template loses a text of the conversation as it is"
    if tools and not (facts.tools_variable or facts.tools_in_system):
        return "the template knows no tools: they are told in a message"
    if tools and (facts.tools_variable != "tools" or variables.get("tools") != TOOLS):
        return "the template takes tools in a way of its own"
    if not facts.takes_objects and any(message.get("tool_calls") for message in messages):
        return "the template takes arguments as text"
    if talk == "two systems":
        return "leading system messages are one"
    if told != messages and form.shape != AS_SENT:
        return "the template loses or refuses another conversation of this kind"
    return "the template wants another field" if told != messages else ""


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", SOURCES)
def test_what_transformers_renders(name: str, talk: str) -> None:
    """Every difference has a reason, and nothing that transformers renders is refused."""
    messages, tools = TALKS[talk]
    form, template = known(name)
    told, variables = form.history(copy.deepcopy(messages), TOOLS if tools else [])
    ours = template.render(told, {"add_generation_prompt": True, **variables})
    theirs = _by_transformers(name, talk)
    assert ours == theirs or _reason(name, talk, theirs)
