"""Tokens to text as they come, and stop strings in that text.

Text once given out is never taken back: bytes of an unfinished character and a possible beginning of a stop
string are held until the next token decides, or the end does.

The tokenizers library decodes a list of tokens as one text; its decoders that matter here work token by
token: byte-level BPE (GPT-2's byte-to-character table), and the SentencePiece kind (a replaced space
marker, <0xNN> for single bytes). For these a table has the bytes of each entry, and a token costs one
look-up. For any other decoder there is no table and the library's own DecodeStream is used.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from tokenizers.decoders import DecodeStream

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
        piece = self[token] = self._piece(token)
        return piece

    def peek(self, token: int) -> bytes:
        """The same, and nothing is kept."""
        known = self.get(token)
        return self._piece(token) if known is None else known

    def _piece(self, token: int) -> bytes:
        name = None if token in self._special else self._id_to_token(token)
        return b"" if name is None else self._rule(name)


class TokenTexts(dict[int, "str | None"]):
    """Token id -> its text when its bytes are whole characters, else None. The bytes of such a token are not
    kept: a large vocabulary would be there twice."""

    def __init__(self, bytes_of: TokenBytes) -> None:
        super().__init__()
        self._bytes_of = bytes_of

    def __missing__(self, token: int) -> str | None:
        try:
            text = self._bytes_of.peek(token).decode()
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


class TableDetokenizer:
    """Detokenizer by table: nearly every token is whole characters and costs one look-up."""

    __slots__ = ("_bytes_of", "_decoder", "_pending", "_texts_of")

    def __init__(self, table: TokenTable) -> None:
        self._bytes_of = table.bytes_of
        self._texts_of = table.texts_of
        self._decoder: codecs.IncrementalDecoder | None = None
        self._pending = False

    def push(self, token: int) -> str:
        """The text that `token` completes, often "" or more than the token's own."""
        if not self._pending:
            text = self._texts_of[token]
            if text is not None:
                return text
        return self._push_bytes(self._bytes_of[token])

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """The texts that `push` gives for these tokens, without those of tokens that complete no text."""
        found: list[str] = []
        texts_of = self._texts_of
        for token in tokens:
            text = None if self._pending else texts_of[token]
            if text is None:
                text = self._push_bytes(self._bytes_of[token])
            if text:
                found.append(text)
        return found

    def push_all(self, tokens: list[int]) -> str:
        """The text of several tokens, as `push` gives it for each of them."""
        return self._push_bytes(b"".join([self._bytes_of[token] for token in tokens]))

    def _push_bytes(self, piece: bytes) -> str:
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._decoder.decode(piece)
        self._pending = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """The text still held when the sequence ends; an unfinished character becomes U+FFFD."""
        self._pending = False
        return self._decoder.decode(b"", True) if self._decoder is not None else ""


class StreamDetokenizer:
    """Detokenizer by the tokenizers library, for decoders that look at more than one token."""

    __slots__ = ("_core", "_stream", "_visible")

    def __init__(self, core: tokenizers.Tokenizer, visible: frozenset[int]) -> None:
        self._core = core
        self._visible = visible
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        if token in self._visible:
            return self._core.id_to_token(token) or ""
        return self._stream.step(self._core, token) or ""

    def texts(self, tokens: Sequence[int]) -> list[str]:
        return [text for token in tokens if (text := self.push(token))]

    def push_all(self, tokens: list[int]) -> str:
        return "".join([self.push(token) for token in tokens])

    def flush(self) -> str:
        return ""


Detokenizer = TableDetokenizer | StreamDetokenizer


def partial_suffix_length(text: str, delimiters: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of `delimiters`."""
    longest = 0
    for mark in delimiters:
        at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
        while at >= 0 and not mark.startswith(text[at:]):
            at = text.find(mark[0], at + 1)
        if at >= 0:
            longest = max(longest, len(text) - at)
    return longest


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces. keep: it is part of the text. found: the
    one that was found.
    """

    __slots__ = ("_held", "_keep", "_stops", "found")

    def __init__(self, stops: list[str], *, keep: bool = False) -> None:
        self._stops = stops
        self._keep = keep
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is certain, whether a stop string was found). The stop string itself is given out only
        with `keep`.
        """
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            end, at, self.found = min(found)  # however the text is cut, this one is complete first
            return text[: end if self._keep else at], True
        keep = partial_suffix_length(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The text that was held, now that no more comes."""
        held, self._held = self._held, ""
        return held


class SequenceText:
    """The text of one sequence as its tokens come, cut at the first stop string. No stop string is looked for
    in the first `min_tokens` tokens.
    """

    __slots__ = ("_matcher", "_min_tokens", "_tokens", "detokenizer")

    def __init__(
        self, detokenizer: Detokenizer, stops: list[str], *, keep_stop: bool = False, min_tokens: int = 0
    ) -> None:
        self.detokenizer = detokenizer
        self._matcher = StopMatcher(stops, keep=keep_stop) if stops else None
        self._min_tokens = min_tokens
        self._tokens = 0

    @property
    def stop_found(self) -> str | None:
        """The stop string that has ended the text."""
        return None if self._matcher is None else self._matcher.found

    def push(self, token: int) -> tuple[str, bool]:
        """(text that is certain, whether a stop string was found)."""
        self._tokens += 1
        return self._match(self.detokenizer.push(token))

    def flush(self) -> tuple[str, bool]:
        """The text that was held, now that the sequence has ended; as `push`."""
        text, stopped = self._match(self.detokenizer.flush())
        if self._matcher is not None and not stopped:
            text += self._matcher.flush()
        return text, stopped

    def _match(self, text: str) -> tuple[str, bool]:
        if self._matcher is None or self._tokens <= self._min_tokens:
            return text, False
        return self._matcher.push(text)
