"""A model that knows tools and reasoning, for the tests of whatever API."""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path

import tokenizers
from service import Service

from tests.text.toy_model import write_model

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
TAUGHT = (
    "{%- if tools %}<|system|>{{ tools | tojson }}\n{% endif %}"
    "{%- for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>"
    "{%- if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{%- if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endif %}{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}"
    "<tool_call>"
    "{%- if c.function.arguments.city %}CALLED:{{ c.function.arguments.city }}"
    "{%- else %}{{ c.function | tojson }}</tool_call>{% endif %}"
    "{% endfor %}\n"
    "{%- endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""CALLED: what tests of one API want to see of an earlier call. Calls of other tools are written as the model
writes them: by these its format is found.
"""


def taught_service(
    make_service: Callable[..., Service], core: tokenizers.Tokenizer, path: Path, called: str
) -> Service:
    """A server of that model, which calls a tool. called: what its template shows of an earlier call."""
    template = TAUGHT.replace("CALLED", called)
    service = make_service(model_dir=write_model(path, core, template=template))
    service.text = CALL
    return service


def prompt(service: Service) -> str:
    """The text of the last one that the engine got."""
    ids = array.array("i", service.engine.submitted[-1].prompt).tolist()
    return service.core.decode(ids, skip_special_tokens=False)
