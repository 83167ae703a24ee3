"""Texts drawn at random from a grammar, with and without special tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import llguidance
import numpy as np

from firelane.engine.grammar.trial import byte_tokenizer

MOST_TOKENS = 1500
FIRST_SPECIAL = 257
"""Behind the bytes and the end."""


@cache
def tokenizer(specials: tuple[str, ...]) -> llguidance.LLTokenizer:
    """Bytes, the end, and these."""
    return byte_tokenizer(specials, FIRST_SPECIAL + len(specials))


class Drawing:
    """One grammar, whose marks are tokens of their own where they are among `specials`."""

    def __init__(self, lark: str, specials: Sequence[str] = ()) -> None:
        self._specials = tuple(specials)
        self._tokenizer = tokenizer(self._specials)
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        self._matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def takes(self, text: str) -> bool:
        """Whether the whole text is of the grammar."""
        made = self._matcher.deep_copy()
        tokens = self._tokens(text)
        return made.try_consume_tokens(tokens) == len(tokens) and made.is_accepting()

    def begins(self, text: str) -> bool:
        """Whether some text of the grammar begins so."""
        tokens = self._tokens(text)
        return self._matcher.deep_copy().try_consume_tokens(tokens) == len(tokens)

    def draw(self, seed: int) -> str | None:
        """None where the text does not end."""
        made, rng = self._matcher.deep_copy(), random.Random(seed)
        tokens: list[int] = []
        for _ in range(MOST_TOKENS):
            mask = np.frombuffer(made.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
            if made.is_stopped() or (made.is_accepting() and rng.random() < 0.5):
                return self._text(tokens)
            choices = [t for t in allowed if t != FIRST_SPECIAL - 1]
            rare = [t for t in choices if t < 128 and not chr(t).isalnum()]
            plain = [t for t in choices if 32 <= t < 127]
            pool = rng.choice([rare, plain, [t for t in choices if t >= FIRST_SPECIAL]]) or plain or choices
            tokens.append(rng.choice(pool))
            made.consume_token(tokens[-1])
            assert not made.is_error(), made.get_error()
        return None

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = []
        while text:
            found = [(text.index(name), i, name) for i, name in enumerate(self._specials) if name in text]
            at, i, name = min(found, default=(len(text), -1, ""))
            tokens += list(text[:at].encode()) + ([FIRST_SPECIAL + i] if name else [])
            text = text[at + len(name) :]
        return tokens

    def _text(self, tokens: list[int]) -> str:
        pieces = [
            bytes([t]) if t < FIRST_SPECIAL else self._specials[t - FIRST_SPECIAL].encode() for t in tokens
        ]
        return b"".join(pieces).decode("utf-8", "replace")
