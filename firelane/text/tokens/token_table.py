"""Vocabulary entries as bytes, so that a stream of tokens is decoded at a table look-up a token.

The tokenizers library decodes a list of tokens as one text; its decoders that matter here work token by
token: byte-level BPE (GPT-2's byte-to-character table), and the SentencePiece kind (a replaced space
marker, <0xNN> for single bytes). For any other decoder there is no table and the library's own DecodeStream
is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Rule = Callable[[str], bytes]
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_table() -> dict[str, int]:
    """GPT-2's map of printable characters to bytes: printable bytes are themselves, the others lie from
    U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in set(printable))
    table.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return table


def _byte_level_rule() -> Rule:
    table = byte_level_table()

    def rule(token: str) -> bytes:
        try:
            return bytes([table[char] for char in token])
        except KeyError:  # an added token, written as it is
            return token.encode()

    return rule


def _sentencepiece_rule(replacements: list[tuple[str, str]], byte_fallback: bool) -> Rule:
    def rule(token: str) -> bytes:
        single = _BYTE_TOKEN.fullmatch(token) if byte_fallback else None
        if single:
            return bytes([int(single.group(1), 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return rule


def _sequence_rule(steps: list[dict[str, Any]]) -> Rule | None:
    replacements: list[tuple[str, str]] = []
    byte_fallback = False
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif step["type"] == "ByteFallback":
            byte_fallback = True
        elif step["type"] == "ByteLevel" and len(steps) == 1:
            return _byte_level_rule()
        elif step["type"] not in ("Fuse", "Strip"):  # Strip drops a text's first space: not within a stream
            return None
    return _sentencepiece_rule(replacements, byte_fallback)


def byte_rule(decoder: dict[str, Any] | None) -> Rule | None:
    """The rule by which a vocabulary entry becomes bytes under the decoder of a tokenizer.json, or None if
    not entry by entry.
    """
    kind = decoder["type"] if decoder else None
    if decoder is None:
        return None
    if kind == "ByteLevel":
        return _byte_level_rule()
    if kind == "Metaspace":
        return _sentencepiece_rule([(decoder["replacement"], " ")], False)
    return _sequence_rule(decoder["decoders"]) if kind == "Sequence" else None


class TokenBytes(dict[int, bytes]):
    """Token id -> its bytes, filled as ids appear. Special tokens and unknown ids are empty."""

    def __init__(self, id_to_token: Callable[[int], str | None], rule: Rule, special: frozenset[int]) -> None:
        super().__init__()
        self._id_to_token = id_to_token
        self._rule = rule
        self._special = special

    def __missing__(self, token: int) -> bytes:
        name = None if token in self._special else self._id_to_token(token)
        piece = self[token] = b"" if name is None else self._rule(name)
        return piece


class TokenTexts(dict[int, "str | None"]):
    """Token id -> its text when its bytes are whole characters, else None."""

    def __init__(self, bytes_of: TokenBytes) -> None:
        super().__init__()
        self._bytes_of = bytes_of

    def __missing__(self, token: int) -> str | None:
        try:
            text = self._bytes_of[token].decode()
        except UnicodeDecodeError:
            text = None
        self[token] = text
        return text


class TokenTable:
    """The vocabulary as bytes and as text. Special tokens are empty, those of `visible` their names."""

    __slots__ = ("bytes_of", "texts_of")

    def __init__(
        self,
        id_to_token: Callable[[int], str | None],
        rule: Rule,
        special: frozenset[int],
        visible: frozenset[int],
    ) -> None:
        self.bytes_of = TokenBytes(id_to_token, rule, special)
        for token in visible & special:
            self.bytes_of[token] = (id_to_token(token) or "").encode()
        self.texts_of = TokenTexts(self.bytes_of)
