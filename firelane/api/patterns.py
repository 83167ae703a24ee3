"""Texts of patterns and grammars that a request gives."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MAX_PATTERN_CHARS = 16 << 10
MAX_GRAMMAR_CHARS = 64 << 10

Pattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARS)]
GrammarText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
