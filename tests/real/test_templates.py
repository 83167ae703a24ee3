"""Published chat templates: no text of any conversation is lost, by whatever API it comes; and what is
rendered is what transformers renders, but for the reasons that are listed here.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from firelane.text.chat_format import ChatFormat
from firelane.text.conversation import chat_conversation
from firelane.text.template import ChatTemplate
from tests.real import artefacts
from tests.real.template_talks import APIS, SHAPES, TOOLS
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
