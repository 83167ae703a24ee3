"""A custom tool as a function of one text, which is how models know tools."""

from __future__ import annotations

from typing import Any, Literal

from firelane.text.tools.custom.lark_pattern import pattern_of_lark
from firelane.text.tools.tool import INPUT, Tool


def custom_tool(
    name: str,
    description: str | None,
    syntax: Literal["lark", "regex"] | None = None,
    definition: str = "",
) -> Tool:
    """The tool, whose calls always hold to its grammar. syntax, definition: of the grammar; None is any text.
    Raises RequestError where a Lark grammar is wrong, or one that no pattern can say."""
    text: dict[str, Any] = {"type": "string"}
    if syntax == "lark":
        text["pattern"] = f"^(?:{pattern_of_lark(definition, name)})$"
    elif syntax == "regex":
        text["pattern"] = f"^(?:{_without_anchors(definition)})$"
    if syntax is not None:
        told = "regular expression" if syntax == "regex" else "Lark grammar"
        note = f"The input is a text of this {told}:\n{definition}"
        description = f"{description}\n{note}" if description else note
    parameters = {**INPUT, "properties": {"input": text}}
    return Tool(name, description, parameters, strict=True, custom=True)


def _without_anchors(regex: str) -> str:
    """All of the input matches anyway."""
    regex = regex.removeprefix("^")
    slashes = len(regex) - len(regex[:-1].rstrip("\\")) - 1
    return regex[:-1] if regex.endswith("$") and slashes % 2 == 0 else regex
