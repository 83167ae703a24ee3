"""The JSON object of a call's arguments as it comes, mended where models write it nearly right.

Mended are line breaks and other control characters in strings, escapes that JSON does not have, commas before
a closing bracket, Python's `True`, `False` and `None`, and brackets that are missing where a tag follows.
"""

from __future__ import annotations

import json
import re

_IN_STRING = re.compile(r'["\\\x00-\x1f]')
_OUTSIDE = re.compile(r'["{}\[\],<TFN]')
_CLOSERS = {"{": "}", "[": "]"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = frozenset('"\\/bfnrtu')


class JsonText:
    """Follows one JSON value that begins with a bracket. size: the number of characters of the last piece
    that belong to it, None while it goes on.
    """

    __slots__ = ("_closers", "_held", "_in_string", "size")

    def __init__(self) -> None:
        self.size: int | None = None
        self._closers: list[str] = []
        self._in_string = False
        self._held = ""

    def feed(self, text: str) -> str:
        """The next piece, mended. What depends on the text to come is held."""
        if self._in_string and not self._held and _IN_STRING.search(text) is None:
            return text  # as most pieces are
        before = len(self._held)
        text, self._held = self._held + text, ""
        made: list[str] = []
        at = 0
        while at < len(text) and self.size is None:
            at = self._string(text, at, made) if self._in_string else self._outside(text, at, made)
            if at < 0:
                break
        if self.size is not None:
            self.size -= before
        return "".join(made)

    def rest(self) -> str:
        """The text that is held, where no more comes."""
        held, self._held = self._held, ""
        return held

    def _string(self, text: str, at: int, made: list[str]) -> int:
        """Read within a string, from `at` on. Where to go on; -1 where the rest is held."""
        found = _IN_STRING.search(text, at)
        if found is None:
            made.append(text[at:])
            return len(text)
        end, c = found.start(), found[0]
        made.append(text[at:end])
        if c == '"':
            self._in_string = False
            made.append(c)
        elif c != "\\":
            made.append(json.dumps(c)[1:-1])
        elif end + 1 == len(text):
            self._held = c
            return -1
        elif text[end + 1] in _ESCAPES:
            made.append(text[end : end + 2])
            return end + 2
        else:
            made.append("\\\\")
        return end + 1

    def _outside(self, text: str, at: int, made: list[str]) -> int:
        """Read on between strings, like `_string` within one."""
        found = _OUTSIDE.search(text, at)
        if found is None:
            made.append(text[at:])
            return len(text)
        end, c = found.start(), found[0]
        made.append(text[at:end])
        if c in "TFN":
            return self._word(text, end, made)
        if c == ",":
            return self._comma(text, end, made)
        if c == "<":
            made.extend(reversed(self._closers))
            self.size = end
            return end
        made.append(c)
        if c == '"':
            self._in_string = True
        elif c in _CLOSERS:
            self._closers.append(_CLOSERS[c])
        else:
            self._close()
        if not self._closers and not self._in_string:
            self.size = end + 1
        return end + 1

    def _close(self) -> None:
        if self._closers:
            self._closers.pop()

    def _word(self, text: str, at: int, made: list[str]) -> int:
        end = at
        while end < len(text) and text[end].isalpha():
            end += 1
        if end == len(text):
            self._held = text[at:]
            return -1
        made.append(_WORDS.get(text[at:end], text[at:end]))
        return end

    def _comma(self, text: str, at: int, made: list[str]) -> int:
        """A comma counts where a value follows."""
        end = at + 1
        while end < len(text) and text[end].isspace():
            end += 1
        if end == len(text):
            self._held = text[at:]
            return -1
        made.append("" if text[end] in "}]<" else text[at:end])
        return end


def mended_object(text: str) -> str | None:
    """The JSON of an object; None where the text is none, nor can be made one."""
    text = text.strip()
    if not text.startswith("{"):
        return None
    follow = JsonText()
    made = follow.feed(text)
    return made if follow.size == len(text) and _is_json(made) else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
