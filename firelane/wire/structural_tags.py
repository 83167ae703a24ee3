"""The tree that the text of a Grammar of kind "structural_tag" is: JSON objects with a `type`, in the form of
xgrammar's formats, with all their fields."""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]


def ends(tag: Node) -> list[str]:
    """Texts of which one ends the tag; none where its content ends by itself."""
    end: str | list[str] = tag["end"]
    return ([end] if end else []) if isinstance(end, str) else end


def is_unlimited(node: Node) -> bool:
    """Whether it ends in free text, which goes on until what follows it is written."""
    kind = node["type"]
    if kind == "sequence":
        return is_unlimited(node["elements"][-1])
    if kind == "or":
        return any(map(is_unlimited, node["elements"]))
    if kind == "tag":
        return not ends(node) and is_unlimited(node["content"])
    if kind in ("optional", "star", "plus"):
        return is_unlimited(node["content"])
    return kind == "any_text" or (
        kind == "triggered_tags" and not (node["at_least_one"] and node["stop_after_first"])
    )
