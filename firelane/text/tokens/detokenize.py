"""Tokens to text as they come, and stop strings in that text.

Text once given out is never taken back: bytes of an unfinished character and a possible beginning of a stop
string are held until the next token decides, or the end does.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from firelane.text.tokens.token_table import TokenTable
from firelane.text.tokens.tokenizer import Tokenizer


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

    def __init__(self, tokenizer: Tokenizer, visible: frozenset[int]) -> None:
        self._core = tokenizer.core
        self._visible = visible
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token: int) -> str:
        if token in self._visible:
            return self._core.id_to_token(token) or ""
        return self._stream.step(self._core, token) or ""

    def push_all(self, tokens: list[int]) -> str:
        return "".join([self.push(token) for token in tokens])

    def flush(self) -> str:
        return ""


Detokenizer = TableDetokenizer | StreamDetokenizer


def make_detokenizer(
    tokenizer: Tokenizer, visible_special_ids: frozenset[int] | None = frozenset()
) -> Detokenizer:
    """visible_special_ids: special tokens that are shown by their names, None: all of them."""
    visible = tokenizer.special_ids if visible_special_ids is None else visible_special_ids
    table = tokenizer.token_table(visible)
    return StreamDetokenizer(tokenizer, visible) if table is None else TableDetokenizer(table)


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
