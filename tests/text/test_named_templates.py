"""Several chat templates of one model: what is rendered is what transformers renders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from firelane.text.gguf.tokenizer import model_files
from firelane.text.model_files import read_model_files
from firelane.text.rendering.named_templates import joined
from firelane.text.rendering.template import ChatTemplate
from tests.text.gguf.test_gguf_tokenizer import metadata_of, trained
from tests.text.toy_model import byte_tokenizer

USUAL = "{%- for m in messages %}\n  {{ m.role }}: {{ m.content }}\n  {% endfor %}\n"
TOOLS = "  {% macro one(t) %}\n[{{ t.function.name }}]\n{% endmacro %}\n{% set n = tools | length %}\n"
TOOLS += "{% for t in tools %}{{ one(t) }}{% endfor %}{{ n }} tools\n\n{{ messages[-1].content }} \n"
RAW = "{% raw %}{% else %}{% endraw %}{# no {% endif %} #}{{ bos_token }}{{ messages[0].content }}\n  "
ENDS = "\n\n  {{- messages[0].content -}}  \r\n\r\n"
PAIRS = [
    (USUAL, TOOLS),
    (RAW, ENDS),
    (ENDS, USUAL),
    (TOOLS.replace("tools", "messages").replace("function.name", "content"), RAW),
]
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": " you\n"}]
FUNCTION = {"name": "find", "description": "Find.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}


def rendered(model: Path, tools: list[Any]) -> str:
    files = read_model_files(model)
    assert files.template is not None
    return ChatTemplate(files.template, {"bos_token": "<s>"}).render(
        MESSAGES, {"tools": tools} if tools else {}
    )


def wanted(named: dict[str, str], tools: list[Any]) -> str:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<s>", chat_template=named
    )
    text = tokenizer.apply_chat_template(MESSAGES, tools=tools or None, tokenize=False)
    assert isinstance(text, str)
    return text


def listed(model: Path, named: dict[str, str]) -> None:
    entries = [{"name": name, "template": text} for name, text in named.items()]
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))


def beside(model: Path, named: dict[str, str]) -> None:
    (model / "chat_template.jinja").write_bytes(named["default"].encode())
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_bytes(named["tool_use"].encode())


def in_gguf(model: Path, named: dict[str, str]) -> None:
    metadata = metadata_of(trained("gpt-2"), "gpt-2") | {
        "tokenizer.chat_template": named["default"],
        "tokenizer.chat_template.tool_use": named["tool_use"],
    }
    (model / "tokenizer_config.json").write_bytes(model_files(metadata)["tokenizer_config.json"])


@pytest.mark.parametrize("write", [listed, beside, in_gguf])
@pytest.mark.parametrize("pair", PAIRS)
def test_rendered_as_transformers_does(tmp_path: Path, write: Any, pair: tuple[str, str]) -> None:
    named = dict(zip(("default", "tool_use"), pair, strict=True))
    write(tmp_path, named)
    for tools in ([], [TOOL], [TOOL, TOOL]):
        assert rendered(tmp_path, tools) == wanted(named, tools), tools


def test_the_only_one_is_used_for_all() -> None:
    assert joined({"tool_use": "t", "rag": "r"}) == "t"
    assert joined({"default": "d", "rag": "r"}) == "d"
    assert joined({"rag": "r"}) is None


def test_files_come_before_the_config(tmp_path: Path) -> None:
    listed(tmp_path, {"default": "old", "tool_use": "old tools"})
    (tmp_path / "chat_template.jinja").write_text("new")
    assert rendered(tmp_path, [TOOL]) == rendered(tmp_path, []) == "new"


def test_a_gguf_file_with_a_template_for_tools_alone() -> None:
    metadata = metadata_of(trained("gpt-2"), "gpt-2") | {"tokenizer.chat_template.tool_use": "t"}
    settings = json.loads(model_files(metadata)["tokenizer_config.json"])
    assert settings["chat_template"] == [{"name": "tool_use", "template": "t"}]
