"""Published templates, two of them as one model's several: what is rendered is what each renders alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from firelane.errors import RequestError
from firelane.text.rendering.named_templates import joined
from firelane.text.rendering.template import ChatTemplate
from tests.real import artefacts

TEMPLATES = artefacts.llama_cpp("models/templates/*.jinja")
FIELDS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": FIELDS}
TOOLS = [{"type": "function", "function": FUNCTION}]
MESSAGES = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Hello.\n"},
    {"role": "user", "content": "Weather in Oslo?"},
]
CONSTANTS = {"bos_token": "<s>", "eos_token": "</s>"}


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, CONSTANTS)


def rendered(source: str | None, tools: list[Any]) -> str:
    assert source is not None
    variables = {"tools": tools} if tools else {}
    try:
        return compiled(source).render(MESSAGES, variables | {"add_generation_prompt": True})
    except RequestError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_each_renders_as_it_does_alone(path: Path) -> None:
    source = path.read_text()
    other = next(p for p in reversed(TEMPLATES) if p != path).read_text()
    for_tools = joined({"default": other, "tool_use": source})
    usual = joined({"default": source, "tool_use": other})
    assert rendered(for_tools, TOOLS) == rendered(source, TOOLS)
    assert rendered(for_tools, []) == rendered(other, [])
    assert rendered(usual, []) == rendered(source, [])
    assert rendered(usual, TOOLS) == rendered(other, TOOLS)


def test_most_render() -> None:
    """Else the comparisons would compare refusals."""
    if not TEMPLATES:
        artefacts.need("llama-cpp-python")
    sources = [path.read_text() for path in TEMPLATES]
    assert sum(rendered(s, []).startswith("refused") for s in sources) <= 3
