"""Models with several chat templates by name: of these `tool_use` is for conversations with tools, and
`default` for all others. They are made into one template, which decides at each conversation."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT, TOOL_USE = "default", "tool_use"
FOLDER = "additional_chat_templates"
"""In a model's directory: files `NAME.jinja`, beside chat_template.jinja, which is the default."""


def joined(named: Mapping[str, str]) -> str | None:
    """The one template: renders what `tool_use` does where tools are declared, and what `default` does
    elsewhere. Where only one of them is there, that one; None where none is."""
    usual, tool_use = named.get(DEFAULT), named.get(TOOL_USE)
    if usual is None or tool_use is None:
        return tool_use if usual is None else usual
    # Each begins at a line's start, as it does alone, and no tag around it takes spaces of its end.
    return f"{{% if tools %}}\n{_body(tool_use)}{{%+ else %}}\n{_body(usual)}{{%+ endif %}}"


def _body(source: str) -> str:
    """Without the line end that Jinja takes from a template's end."""
    for end in ("\r\n", "\n", "\r"):
        if source.endswith(end):
            return source.removesuffix(end)
    return source
