"""Chat templates: each renders a conversation, or is refused in one short line in bounded
time, and renders a plain one afterwards.
"""

from __future__ import annotations

from typing import Any

from firelane.errors import RequestError, TokenizerError
from firelane.text.rendering.template_process import TemplateRenderer, encoded
from fuzz import template_texts
from fuzz.draw import Draw
from fuzz.target import Target

PLAIN = [{"role": "user", "content": "plain"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": [1, {"b": "é"}]}}}
TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "other"}] * 3,
    [{"role": "system", "content": "s\n\n"}, {"role": "user", "content": "a" * 5000}],
    [
        {"role": "user", "content": "é😀\u2028<|im_end|>{{ 1 }}"},
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"a": 1}', "tool_call_id": "c"},
    ],
]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def run(data: bytes) -> None:
    draw = Draw(data)
    source = (
        "{% if messages[0].content == 'plain' %}ok{% else %}" + template_texts.whole(draw) + "{% endif %}"
    )
    _render(source, draw.choice(TALKS), [TOOL] * draw.choice((0, 2)))


def _render(source: str, talk: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
    variables = {"add_generation_prompt": True, "tools": tools}
    made = TemplateRenderer(source, {"bos_token": "<s>"})
    try:
        try:
            made.render_blocking(encoded(talk, variables))
        finally:
            assert made.render_blocking(encoded(PLAIN, {})) == "ok"
    finally:
        made.close()


TARGET = Target(run=run, refusals=(RequestError, TokenizerError), most_bytes=256, limit_s=10.0)
