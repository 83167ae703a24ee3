"""Texts of chat templates, compiled and rendered in this process: a short source gives a prompt or a refusal.
The limits of time and memory are those of the process that renders, for which there is the target `template`:
what takes long here ends there."""

from __future__ import annotations

from typing import Any

from firelane.errors import RequestError, TokenizerError
from firelane.text.rendering.template import ChatTemplate
from fuzz.target import Target

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": [1, {"b": "é"}]}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "é<|im_end|>{{ 1 }}"},
    {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"a": 1}', "tool_call_id": "c"},
]


def run(data: bytes) -> None:
    template = ChatTemplate(data.decode(errors="replace"), {"bos_token": "<s>"})
    assert isinstance(template.render(TALK, {"add_generation_prompt": True, "tools": [CALL]}), str)


TARGET = Target(
    run=run,
    refusals=(RequestError, TokenizerError),
    most_bytes=160,
    limit_s=5.0,
    limit_bytes=1 << 30,
    words=(
        *(
            b"{{ ",
            b" }}",
            b"{% for m in messages %}",
            b"{% endfor %}",
            b"{% if ",
            b" %}",
            b"{% endif %}",
            b"{%- ",
        ),
        *(
            b"{% set ns = namespace(a=1) %}",
            b"{% macro f(x) %}",
            b"{% endmacro %}",
            b"m.role",
            b"m['content']",
        ),
        *(
            b" | tojson",
            b" | trim",
            b"raise_exception('x')",
            b"tools",
            b"bos_token",
            b"loop.last",
            b"messages[0]",
        ),
        *(
            b"{% generation %}",
            b"{% endgeneration %}",
            b"{% break %}",
            b"is defined",
            b".split('a')",
            b"strftime_now('",
        ),
    ),
)
