"""Arguments of earlier calls that are no JSON object, for templates that take nothing else: a limit has cut
them, or another server let the model write them so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

KEY = "arguments"
"""The key of the text, in an object where no part of it can be read."""
MOST_CHARS = 1 << 17
"""Characters of a text that is looked into: the processor time of rendering is limited."""
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*'
_TOKEN = re.compile(rf'{_STRING}(?P<end>"|\\?\Z)|[{{}}\[\],]', re.DOTALL)
_CUT_ITEM = re.compile(rf'\s*,?\s*(?:{_STRING}(?:\\|"\s*(?::\s*[-+.\w]*)?)?|[-+.\w]*)\Z', re.DOTALL)
"""A key without a value, or a number or word that may not be whole."""
_CUT_ESCAPE = re.compile(r"\\u?[0-9a-fA-F]{0,4}\Z")
_CLOSERS = {"{": "}", "[": "]"}


def as_object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """The object that a text begins, without a last key that has no value; an object of the whole text where
    it begins none.
    """
    if isinstance(arguments, dict):
        return arguments
    begins = len(arguments) <= MOST_CHARS and arguments.lstrip().startswith("{")
    for text in _completed(arguments) if begins else ():
        try:
            value: Any = json.loads(text, strict=False)
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):  # also where a character is cut
            continue
        return cast(dict[str, Any], value)
    return {KEY: arguments}


def _completed(text: str) -> Iterator[str]:
    """Texts that may be whole: closed at the end, and closed before what is not whole."""
    closers, safe, in_string = _scanned(text)
    if not in_string:
        yield text + closers
    else:
        yield f'{text}"{closers}'
        yield f'{_CUT_ESCAPE.sub("", text)}"{closers}'
    if _CUT_ITEM.match(text, safe):
        yield text[:safe] + _scanned(text[:safe])[0]


def _scanned(text: str) -> tuple[str, int, bool]:
    """The brackets that close the text, the characters up to the last bracket that opens or comma, and
    whether the text ends in a string."""
    closers: list[str] = []
    safe, in_string = 0, False
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in _CLOSERS:
            closers.append(_CLOSERS[token])
            safe = found.end()
        elif token == ",":
            safe = found.start()
        elif token in "]}":
            closers = closers[:-1]
        else:
            in_string = found["end"] != '"'
    return "".join(reversed(closers)), safe, in_string
