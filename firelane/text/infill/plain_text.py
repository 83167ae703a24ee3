"""Texts of clients in prompts with marks: what looks like a mark in them stays text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import ParamSpec, TypeAlias, TypeVar

from firelane.errors import RequestError
from firelane.text.infill.marks import SPACE, InfillMarks
from firelane.text.tokens.tokenizer import SHORT_CHARS, TextEncoder, TextRoom, Tokenizer, unpack_ids

ANCHOR = "\u263a"
"""A character that no merge joins with others: text behind it begins without a space of the tokenizer's own.
Roziere et al. (arXiv 2308.12950) encode what stands behind a gap so."""
SPACES = (SPACE, "\u0120")
"""First characters of tokens that begin with a space."""


class PlainTextEncoder:
    """Encodes texts of one model without any special token in them, whatever is typed: a text is cut within
    each name of a special token, so that none is found. Not changed after construction.
    """

    def __init__(self, tokenizer: Tokenizer, marks: InfillMarks) -> None:
        self._encoder = TextEncoder(tokenizer)
        special = tokenizer.special_ids | marks.ends
        names = {token: (tokenizer.core.id_to_token(token) or "").strip(SPACE) for token in special}
        # One of a single character is that character.
        self._forbidden = frozenset(token for token, name in names.items() if len(name) != 1)
        self._names = _pattern(names.values())
        self._anchor = _anchor(tokenizer)

    async def encode(self, text: str, room: TextRoom, *, begins: bool = False) -> list[int]:
        """Token ids. begins: with the space that the tokenizer puts before a text, where it does. Raises
        ContextLengthError, and RequestError.
        """
        if not text:
            return []
        plain = 1 if begins else 0
        given = await _aside(len(text), self._pieces, text, plain)
        packed = await self._encoder.encode(given, room, special=False)
        ids = await _aside(len(text), self._joined, packed, plain)
        if not self._forbidden.isdisjoint(ids):
            raise RequestError(
                f"`{room.part}` spells a mark of the model in a way that does not stay text: leave it out",
                param=room.part,
            )
        return ids

    def _pieces(self, text: str, plain: int) -> list[str]:
        """The text, cut behind the first character of each name. plain: pieces without an anchor."""
        cuts = [0, *(start + 1 for start in self._starts(text)), len(text)]
        pieces = [text[begin:end] for begin, end in pairwise(cuts) if end > begin]
        anchor = ANCHOR if self._anchor else ""
        return [*pieces[:plain], *(anchor + piece for piece in pieces[plain:])]

    def _starts(self, text: str) -> Iterator[int]:
        """Places where a name begins. The text is searched in parts, between which other threads run."""
        for begin in range(0, len(text) if self._names else 0, SEARCHED_CHARS):
            end = begin + SEARCHED_CHARS
            for found in self._names.finditer(text, begin, end + NAME_CHARS) if self._names else ():
                if found.start() < end:
                    yield found.start()

    def _joined(self, packed: list[bytes], plain: int) -> list[int]:
        found = [unpack_ids(one).tolist() for one in packed]
        return [token for i, one in enumerate(found) for token in (one if i < plain else self._after(one))]

    def _after(self, ids: list[int]) -> list[int]:
        count = len(self._anchor)
        return ids[count:] if ids[:count] == self._anchor else ids


SEARCHED_CHARS = 64 << 10
NAME_CHARS = 64
END = ""
"""The letter behind the last one of a name."""
Tree: TypeAlias = "dict[str, Tree]"
P = ParamSpec("P")
R = TypeVar("R")


async def _aside(chars: int, work: Callable[P, R], *args: P.args, **given: P.kwargs) -> R:
    """Work on a text of so many characters: off the event loop where it is long."""
    if chars <= SHORT_CHARS:
        return work(*args, **given)
    return await asyncio.to_thread(work, *args, **given)


def _pattern(names: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of places where a name begins, also within another one; of long names the first characters
    count. It shares what names have in common: there may be a thousand."""
    root: Tree = {}
    for name in names:
        node = root
        for letter in name[:NAME_CHARS] if len(name) > 1 else "":
            node = node.setdefault(letter, {})
        if node is not root:
            node.clear()
            node[END] = {}
    return re.compile(f"(?={_branches(root)})") if root else None


def _branches(node: Tree) -> str:
    """A regular expression of a tree's texts; what goes on behind the end of one is not looked at."""
    if END in node:
        return ""
    parts = [re.escape(letter) + _branches(below) for letter, below in sorted(node.items())]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _anchor(tokenizer: Tokenizer) -> list[int]:
    """Token ids of the anchor; [] of a tokenizer that puts no space before a text."""
    ids = tokenizer.encode(ANCHOR, add_special_tokens=False)
    first = tokenizer.core.id_to_token(ids[0]) if ids else None
    return ids if first and first[0] in SPACES else []
