"""Contents, calls and outputs of /v1/responses' items in the words of the chat API."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from firelane.api.stored.responses_items import ITEM_TYPES, PART_TYPES, InputItem, InputPart, InputText
from firelane.gateway.apis.responses.tools import ToolNames

Body = dict[str, Any]


def parts_of(content: InputText | None, where: str) -> list[Body]:
    """Parts of a message. Raises RequestError where a text is missing."""
    if content is None or isinstance(content, str):
        return [_text(content or "")]
    return [_part(part, f"{where}.content") for part in content]


def _part(part: InputPart, where: str) -> Body:
    text = part.content(where)
    return _other(part.type, part.image_url, part.detail) if text is None else _text(text)


def output_parts(output: Any) -> list[Body]:
    """Parts of what a call gave: a text, a list of parts, or any JSON of another server's tool."""
    values: list[Any] = output if isinstance(output, list) else [output]
    return [_output_part(value) for value in values]


def _output_part(value: Any) -> Body:
    if isinstance(value, str) or value is None:
        return _text(value or "")
    found = cast(Body, value) if isinstance(value, dict) else {}
    kind, text = found.get("type"), found.get("text")
    if kind in PART_TYPES and isinstance(text, str):
        return _text(text)
    if isinstance(kind, str):
        return _other(kind, found.get("image_url"), found.get("detail"))
    return _text(msgspec.json.encode(value).decode())


def _other(kind: str, image_url: Any, detail: Any) -> Body:
    """A part without a text, which may give an image."""
    if image_url is None:
        return {"type": kind}
    return {"type": kind, "image_url": {"url": image_url, "detail": detail}}


def called_function(item: InputItem, names: ToolNames) -> Body:
    """Name and arguments of a call, by whatever tool."""
    if item.type == "custom_tool_call":
        name = names.name_for_model(item.namespace, item.name or "")
        return {"name": name, "arguments": {"input": item.input}}
    if item.name is not None:
        return {"name": names.name_for_model(item.namespace, item.name), "arguments": item.arguments}
    given = item.operation if item.type == "apply_patch_call" else item.action
    return {"name": item.type.removesuffix("_call"), "arguments": given}


def left_out_of(items: list[InputItem]) -> list[str]:
    """Names of what is in items and is not read."""
    names: list[str] = []
    for item in items:
        if item.type not in ITEM_TYPES or item.type == "compaction":
            names.append(f"input[].{item.type}")
        elif item.type == "reasoning" and item.encrypted_content and not item.thought("input"):
            names.append("input[].encrypted_content")
    return names


def _text(text: str) -> Body:
    return {"type": "text", "text": text}
