"""Values as Python writes them, turned into JSON."""

from __future__ import annotations

import json
import re

from firelane.text.tools.parameters import quoted_text, text_in_json

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<string>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
    | (?P<number>[-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
    | (?P<word>[A-Za-z]+)
    | (?P<sign>[\[\](){},:])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {"\\": "\\", "'": "'", '"': '"', "/": "/", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_SIGNS = {"(": "[", ")": "]", ",": ", ", ":": ": "}


class LiteralEnd:
    """Follows one value to the comma or bracket behind it."""

    __slots__ = ("_depth", "_escaped", "_quote")

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Place in `text` of what follows the value, None where it goes on."""
        for at, c in enumerate(text):
            if self._quote:
                self._follow_string(c)
            elif c in "\"'":
                self._quote = c
            elif c in "([{":
                self._depth += 1
            elif self._depth == 0 and c in ",)]}":
                return at
            elif c in ")]}":
                self._depth -= 1
        return None

    def _follow_string(self, c: str) -> None:
        if self._escaped:
            self._escaped = False
        elif c == "\\":
            self._escaped = True
        elif c == self._quote:
            self._quote = ""


def python_as_json(text: str) -> str:
    """The JSON of a list, dict, string, number or constant; of anything else, a string of its text."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        piece = None if token is None else _json(token)
        if token is None or piece is None:
            return quoted_text(text.strip())
        if piece in ("]", "}") and pieces[-1:] == [", "]:
            pieces.pop()
        pieces += [piece] if piece else []
        at = token.end()
    made = "".join(pieces)
    try:
        json.loads(made)
    except (ValueError, RecursionError):
        return quoted_text(text.strip())
    return made


def _json(token: re.Match[str]) -> str | None:
    kind, text = token.lastgroup, token[0]
    if kind == "string":
        return f'"{_string(text[1:-1])}"'
    if kind == "number":
        return _number(text.replace("_", ""))
    if kind == "word":
        return _WORDS.get(text)
    return "" if kind == "space" else _SIGNS.get(text, text)


def _string(text: str) -> str:
    """The inside of a JSON string. A code point stays an escape: half of a pair is no text."""
    made: list[str] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        made.append(text_in_json(text[at : found.start()]))
        at = found.end()
        escape = found[1]
        if escape[0] in "xu" and len(escape) > 1:
            made.append(f"\\u{escape[1:]:0>4}")
        elif escape[0] == "U" and len(escape) > 1:
            code = int(escape[1:], 16)
            made.append(text_in_json(chr(code) if code < 0xD800 or 0xE000 <= code < 0x110000 else found[0]))
        else:
            made.append(text_in_json("" if escape == "\n" else _ESCAPED.get(escape, found[0])))
    return "".join(made) + text_in_json(text[at:])


def _number(text: str) -> str:
    text = text.removeprefix("+")
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, point, rest = digits.partition(".")
    if not point:
        return text
    return f"{sign}{whole or '0'}.{rest if rest[:1].isdigit() else '0' + rest}"
